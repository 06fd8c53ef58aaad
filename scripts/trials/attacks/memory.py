"""Attacks on the memory of the service: large requests and answers, messages of fields alone, or that never arrive."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import grpc

from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.requests import made_request
from scripts.trials.attacks.registry import attack
from scripts.trials.calls import Target, status_of

_METHOD = "/rerank.v1.RerankService/Rerank"
_TIMEOUT_S = 60.0
#: How long clients stay connected that do not read or do not send.
_STAY_S = 30.0


@attack
async def large_requests(target: Target, draw: random.Random) -> Counter[str]:
    """60 requests of 16 MB at once."""
    message = made_request(draw, "identity", 80, 199_000)
    return Counter(await asyncio.gather(*(target.rerank(message, _TIMEOUT_S) for _ in range(60))))


@attack
async def unread_answers(target: Target, draw: random.Random) -> Counter[str]:
    """20 clients that ask for answers of 15 MB and do not read them for 30 s."""
    message = made_request(draw, "identity", 75, 199_000, return_passages=True)
    return Counter(await asyncio.gather(*(_stay(target.address, message) for _ in range(20))))


@attack
async def missing_messages(target: Target, draw: random.Random) -> Counter[str]:
    """200 calls on 20 connections that announce a request and do not send it for 30 s."""
    return Counter(await asyncio.gather(*(_stay(target.address, None, calls=10) for _ in range(20))))


@attack
async def empty_candidates(target: Target, draw: random.Random) -> Counter[str]:
    """30 messages of 15 MB that are seven million empty candidates."""
    return await _repeated(target, b"\x12\x00")


@attack
async def unknown_fields(target: Target, draw: random.Random) -> Counter[str]:
    """30 messages of 15 MB of fields that the protocol does not have, in a candidate."""
    length = bytes([0x80, 0x80, 0x80, 0x07])  # 14 MiB, as a varint
    return await _repeated(target, b"\x78\x00", b"\x0a\x01q\x12" + length)


@attack
async def repeated_fields(target: Target, draw: random.Random) -> Counter[str]:
    """30 Search messages of 15 MB that are relevance feedback again and again."""
    return await _repeated(target, b"\x52\x00", b"\x0a\x01q", method="/rerank.v1.RerankService/Search")


@attack
async def compressed_messages(target: Target, draw: random.Random) -> Counter[str]:
    """300 messages of 15 MB of empty candidates that are 15 kB with gzip."""
    compression = grpc.Compression.Gzip
    return sum([await _repeated(target, b"\x12\x00", compression=compression) for _ in range(10)], Counter())


@attack
async def long_names(target: Target, draw: random.Random) -> Counter[str]:
    """30 messages of 15 MB whose model is a name of 15 million characters."""
    return await _repeated(target, b"x", b"\x0a\x01q\x12\x05\x0a\x01a\x12\x00\x1a\x80\x80\x80\x07")


async def _repeated(
    target: Target,
    piece: bytes,
    beginning: bytes = b"",
    method: str = _METHOD,
    compression: grpc.Compression = grpc.Compression.NoCompression,
) -> Counter[str]:
    """The outcomes of 30 messages at once, on connections of their own, of pieces of 14 MiB (15 MB) in all."""
    message = beginning + piece * (14 * 2**20 // len(piece))

    async def one() -> str:
        async with Target(target.address) as own:
            call: Any = own.channel.unary_unary(method)
            return await status_of(call(message, timeout=_TIMEOUT_S, compression=compression))

    return Counter(await asyncio.gather(*(one() for _ in range(30))))


async def _stay(address: str, message: pb.RerankRequest | None, calls: int = 1) -> str:
    """Starts calls on a connection of its own, sends the message to each if there is one, and reads no answer.

    Returns:
        The state of the first call in the end.
    """
    async with Target(address) as own:
        method: Any = own.channel.stream_stream(_METHOD, request_serializer=pb.RerankRequest.SerializeToString)
        started: list[Any] = [method() for _ in range(calls)]
        if message is not None:
            await asyncio.gather(*(_send(call, message) for call in started), return_exceptions=True)
        await asyncio.sleep(_STAY_S)
        return "ended by the service" if started[0].done() else "waiting"


async def _send(call: Any, message: pb.RerankRequest) -> None:
    await call.write(message)
    await call.done_writing()
