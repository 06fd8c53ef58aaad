"""Attacks on the memory of the service over gRPC: large requests, unread answers, and millions of candidates."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import grpc

from rerank.v1 import rerank_pb2 as pb
from scripts.attacks.target import Target, status_of
from scripts.random_requests import random_request

_METHOD = "/rerank.v1.RerankService/Rerank"
_TIMEOUT_S = 60.0
#: How long clients stay connected that do not read.
_STAY_S = 30.0


async def large_requests(target: Target) -> Counter[str]:
    """60 requests of 16 MB at once."""
    message = random_request(random.Random(0), "identity", 80, 199_000)
    return Counter(await asyncio.gather(*(target.rerank(message, _TIMEOUT_S) for _ in range(60))))


async def unread_answers(target: Target) -> Counter[str]:
    """20 clients that ask for answers of 15 MB and do not read them for 30 s."""
    message = random_request(random.Random(0), "identity", 75, 199_000, return_passages=True)
    return Counter(await asyncio.gather(*(_stay_without_reading(target, message) for _ in range(20))))


async def empty_candidates(target: Target) -> Counter[str]:
    """30 messages of 15 MB at once, on a connection each, that are seven million empty candidates."""
    message = b"\x12\x00" * (7 * 2**20)

    async def send() -> str:
        async with Target(target.address, target.http_address) as own:
            call: Any = own.channel.unary_unary(_METHOD)  # sends bytes as they are
            return await status_of(call(message, timeout=_TIMEOUT_S))

    return Counter(await asyncio.gather(*(send() for _ in range(30))))


async def _stay_without_reading(target: Target, message: pb.RerankRequest) -> str:
    """Sends a message on a new connection, reads no answer, and returns the state of the call in the end."""
    async with Target(target.address, target.http_address) as own:
        method: Any = own.channel.stream_stream(_METHOD, request_serializer=pb.RerankRequest.SerializeToString)
        call = method()
        try:
            await call.write(message)
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # refused while it was sent
            return "ended by the service"
        await asyncio.sleep(_STAY_S)
        return "ended by the service" if call.done() else "waiting"
