"""Attacks by long documents, which are divided into parts, and by long bodies of many requests."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import httpx2

from scripts.load_test.requests import words
from scripts.trials.attacks.registry import attack
from scripts.trials.calls import Target

_TIMEOUT_S = 120.0
#: Documents of a request, their length in characters, and the most parts of each.
_DOCUMENTS, _CHARS, _PARTS = 5, 198_000, 200
#: Requests in a body of 7 MB, with so many passages of so many characters each.
_LINES, _PASSAGES, _PASSAGE_CHARS = 400, 25, 680


@attack
async def four_divided_requests_to_default(target: Target, draw: random.Random) -> Counter[str]:
    """Four requests at once to the default model, a fusion, which scores all parts of five documents of 198 kB."""
    return await _divided(target, 4, words(draw, _CHARS), model="")


@attack
async def divided_requests_to_default(target: Target, draw: random.Random) -> Counter[str]:
    """32 of them at once."""
    return await _divided(target, 32, words(draw, _CHARS), model="")


@attack
async def four_divided_requests(target: Target, draw: random.Random) -> Counter[str]:
    """Four requests at once with five documents of 198 kB in sentences of one letter, in up to 200 parts each."""
    return await _divided(target, 4, "a. " * (_CHARS // 3))


@attack
async def divided_requests(target: Target, draw: random.Random) -> Counter[str]:
    """32 of them at once."""
    return await _divided(target, 32, "a. " * (_CHARS // 3))


@attack
async def eight_divided_requests(target: Target, draw: random.Random) -> Counter[str]:
    """Eight of them at once."""
    return await _divided(target, 8, "a. " * (_CHARS // 3))


@attack
async def divided_words(target: Target, draw: random.Random) -> Counter[str]:
    """32 requests at once with five documents of 198 kB of words, in up to 200 parts each."""
    return await _divided(target, 32, words(draw, _CHARS))


@attack
async def large_body_of_many(target: Target, draw: random.Random) -> Counter[str]:
    """7 MB of requests to identity in one body of /rerank/many."""
    body = b"\n".join(
        json.dumps(
            {
                "query": "history of the engine",
                "model": "identity",
                "candidates": [
                    {"doc_id": str(place), "text": words(draw, _PASSAGE_CHARS)} for place in range(_PASSAGES)
                ],
            }
        ).encode()
        for _ in range(_LINES)
    )
    async with _client(target) as client:
        reply = await client.post("/rerank/many", content=body, headers={"content-type": "application/x-ndjson"})
    return Counter("OK" if "response" in json.loads(line) else "error" for line in reply.text.splitlines())


async def _divided(target: Target, requests: int, text: str, model: str = "pe-rank") -> Counter[str]:
    body = {
        "model": model,
        "query": "history of the engine",
        "documents": [f"{place} {text}" for place in range(_DOCUMENTS)],
        "max_chunks_per_doc": _PARTS,
    }
    content = json.dumps(body).encode()
    async with _client(target) as client:

        async def post() -> str:
            return str((await client.post("/v2/rerank", content=content)).status_code)

        return Counter(await asyncio.gather(*(post() for _ in range(requests))))


def _client(target: Target) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    headers = [("content-type", "application/json"), *target.headers]
    return httpx2.AsyncClient(
        base_url=f"http://{target.http_address}", timeout=_TIMEOUT_S, limits=limits, headers=headers
    )
