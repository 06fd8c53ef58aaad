"""Requests of random words for load tests, and calls of a service with them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from rerank.access.credentials import Credentials
from rerank.client.error_details import retry_delay_s
from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc
from scripts.load_test.open_loop import Call, Outcome

_WORDS = "water history of the engine a river which bird turns north stone in 9"


def words(draw: random.Random, characters: int) -> str:
    """Random English words, of exactly this many characters."""
    text = ""
    while len(text) < characters:
        text += " ".join(draw.choices(_WORDS.split(), k=min(4000, characters // 4 + 1))) + " "
    return text[:characters]


def made_request(draw: random.Random, model: str, passages: int, characters: int, **fields: Any) -> pb.RerankRequest:
    """A request with so many random passages of so many characters each; `fields` are further ones of the message."""
    candidates = [pb.Candidate(doc_id=f"d{number}", text=words(draw, characters)) for number in range(passages)]
    return pb.RerankRequest(query=words(draw, 30), candidates=candidates, model=model, **fields)


@asynccontextmanager
async def rerank_calls(
    target: str, credentials: Credentials, requests: Sequence[pb.RerankRequest], timeout_s: float | None
) -> AsyncIterator[Call]:
    """A function that sends the request of a number, again from the first one after the last.

    Args:
        target: HOST:PORT of the service.
        timeout_s: deadline of each call in seconds from its start; None: none.
    """
    async with credentials.aio_channel(target) as channel:
        method: Any = rerank_pb2_grpc.RerankServiceStub(channel).Rerank

        async def call(number: int) -> Outcome:
            message = requests[number % len(requests)]
            try:
                await method(message, timeout=timeout_s, metadata=credentials.metadata)
            except grpc.aio.AioRpcError as error:
                return Outcome(error.code().name, retry_delay_s(error) is not None)
            return Outcome("OK")

        yield call
