"""Attacks of a key's own calls on each other: its streams take its calls in flight, and its other calls want theirs."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator

import grpc
import httpx2

from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.requests import made_request
from scripts.trials.attacks.registry import attack_with_key
from scripts.trials.calls import Target

#: On a crowded machine, all of them need more than a minute.
_TIMEOUT_S = 300.0
_MAX_CALLS = 4
#: Names of the statuses by their codes; an item without an error has 0.
_STATUS = {code.value[0]: code.name for code in grpc.StatusCode}
#: Requests of a stream, and the passages of each.
_REQUESTS, _PASSAGES = 60, 20


@attack_with_key(_MAX_CALLS)
async def stream_beside_calls_of_its_key(target: Target, draw: random.Random) -> Counter[str]:
    """One stream of 60 requests to pe-rank, beside one caller of the same key that asks again and again."""
    message = made_request(draw, "pe-rank", _PASSAGES, 300)
    has_ended, outcomes = False, Counter[str]()

    async def call_again_and_again() -> None:
        while not has_ended:
            outcomes[f"call {await target.rerank(message, _TIMEOUT_S)}"] += 1

    async def requests() -> AsyncIterator[pb.RerankStreamRequest]:
        for _ in range(_REQUESTS):
            yield pb.RerankStreamRequest(request=made_request(draw, "pe-rank", _PASSAGES, 300))

    calling = asyncio.create_task(call_again_and_again())
    await asyncio.sleep(0.2)  # the caller is there first
    async for reply in target.stub.RerankStream(requests(), metadata=target.headers, timeout=_TIMEOUT_S):
        outcomes[f"streamed {_STATUS[reply.error.code]}"] += 1
    has_ended = True
    await calling
    return outcomes


@attack_with_key(_MAX_CALLS)
async def two_bodies_of_many_of_one_key(target: Target, draw: random.Random) -> Counter[str]:
    """Two bodies of 60 requests to pe-rank at /rerank/many at the same time."""
    passages = [
        {"doc_id": each.doc_id, "text": each.text} for each in made_request(draw, "", _PASSAGES, 300).candidates
    ]
    line = json.dumps({"query": "history", "model": "pe-rank", "candidates": passages}).encode()
    headers = [("content-type", "application/x-ndjson"), *target.headers]
    async with httpx2.AsyncClient(base_url=f"http://{target.http_address}", timeout=_TIMEOUT_S) as client:

        async def post() -> list[str]:
            reply = await client.post("/rerank/many", content=b"\n".join([line] * _REQUESTS), headers=headers)
            lines = map(json.loads, reply.text.splitlines())
            return [_STATUS[each["error"]["code"] if "error" in each else 0] for each in lines]

        return Counter([end for ends in await asyncio.gather(post(), post()) for end in ends])
