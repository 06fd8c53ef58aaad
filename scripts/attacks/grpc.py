"""Attacks over gRPC: on the engine, on the memory of the service, and by calls that send nothing or end at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from rerank.v1 import rerank_pb2 as pb
from scripts.attacks.target import LENGTH_S, Target, address_of, outcomes, repeated, status_of
from scripts.http2_frames import call, cancel, message, preface, window_update
from scripts.random_requests import random_request
from scripts.service import running_service

_METHOD = "/rerank.v1.RerankService/Rerank"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_WATCH = "/grpc.health.v1.Health/Watch"
_TIMEOUT_S, _SHORT_TIMEOUT_S = 60.0, 2.0
#: How long clients stay connected that do not read.
_STAY_S = 30.0
_NAME_BYTES = 15 * 2**20
#: Calls that are sent and cancelled with one write, and the pause after it.
_RESETS, _RESET_PAUSE_S = 50, 0.016
#: Connections of raw frames, the calls of each, and the window of those that take an answer in pieces.
_UNREAD_CONNECTIONS, _UNREAD_CALLS, _TINY_CONNECTIONS, _TINY_WINDOW = 300, 4, 200, 2
_PAIRS = pb.Strategy(kind="STRATEGY_KIND_SLIDING", window_size=2, stride=1)


async def nothing(target: Target) -> Counter[str]:
    """No attack, for comparison: what the probes and other programs of the machine cost."""
    return Counter()


async def cancelled_encoding(target: Target) -> Counter[str]:
    """PE-Rank with 1,000 passages of 16,000 characters, cancelled after two seconds."""
    message = _request("pe-rank", 1000, 16_000, allow_partial=True)  # otherwise it is refused
    return Counter([await target.cancelled_rerank(message, 2.0)])


async def long_passages_to_first(target: Target) -> Counter[str]:
    """80 passages of 200,000 characters."""
    return Counter([await target.rerank(_request("first", 80, 200_000, allow_partial=True), _TIMEOUT_S)])


async def narrow_windows(target: Target) -> Counter[str]:
    """Ten sliding passes of window 2 over 1,000 tiny passages with identity: 110 kB, some 10,000 windows."""
    draw = random.Random(0)
    return await _at_once(target, [random_request(draw, "identity", 1000, 4, strategy=_PAIRS) for _ in range(10)])


async def narrow_windows_of_many(target: Target) -> Counter[str]:
    """128 calls at once with one pass of window 2 over 1,000 tiny passages."""
    return await _at_once(target, [_request("identity", 1000, 4, strategy=_PAIRS)] * 128)


async def flood_of_first(target: Target) -> Counter[str]:
    """500 FIRST calls at once, of ten passages each."""
    draw = random.Random(0)
    return await _at_once(target, [random_request(draw, "first", 10, 300) for _ in range(500)])


async def long_then_short(target: Target) -> Counter[str]:
    """20 documents of 198,000 characters, in words and then in dots, to the default; after each 20 short requests."""
    draw, ends = random.Random(0), Counter[str]()
    long = random_request(draw, "default", 20, 198_000)
    dots = random_request(draw, "default", 20, 1)
    for number, candidate in enumerate(dots.candidates):
        candidate.text = f"{number} " + "." * 198_000
    for strange in (long, dots):
        ends["long: " + await target.rerank(strange, _TIMEOUT_S)] += 1
        for _ in range(20):
            ends["short: " + await target.rerank(random_request(draw, "default", 5, 200), _SHORT_TIMEOUT_S)] += 1
    return ends


async def large_requests(target: Target) -> Counter[str]:
    """60 requests of 16 MB at once."""
    return await _at_once(target, [_request("identity", 80, 199_000)] * 60)


async def unread_answers(target: Target) -> Counter[str]:
    """20 clients that ask for answers of 15 MB and do not read them for 30 s."""
    message = _request("identity", 75, 199_000, return_passages=True).SerializeToString()
    return await outcomes(_stay_without_reading(target, _METHOD, message, is_last=True) for _ in range(20))


async def small_unread_answers(target: Target) -> Counter[str]:
    """300 connections with four calls each whose small answers fit into no window; one that ends is opened again."""
    content = _request("identity", 2, 10).SerializeToString()
    calls = b"".join(call(2 * n + 1, _METHOD) + message(2 * n + 1, content) for n in range(_UNREAD_CALLS))
    return await _raw_connections(target, _UNREAD_CONNECTIONS, preface(window=0) + calls)


async def tiny_windows(target: Target) -> Counter[str]:
    """200 connections that take an answer of 30 kB two bytes at a time."""
    content = _request("identity", 100, 300, return_passages=True).SerializeToString()
    first = preface(window=_TINY_WINDOW) + call(1, _METHOD) + message(1, content)
    return await _raw_connections(target, _TINY_CONNECTIONS, first, window_update(1, _TINY_WINDOW))


async def calls_of_ended_connections(target: Target) -> Counter[str]:
    """200 connections that end after the headers of one call, each opened again at once."""
    end_s, opened = time.monotonic() + LENGTH_S, Counter[str]()

    async def call_and_end() -> None:
        async for _, writer in _connections_until(end_s, target):
            opened["connections"] += 1
            writer.write(preface() + call(1, _METHOD))
            await writer.drain()

    await asyncio.gather(*(call_and_end() for _ in range(200)))
    return opened


async def one_large_request(target: Target) -> Counter[str]:
    """One call of 1,000 passages of 4,000 characters to FIRST in windows of 4 with a stride of 1: 7.7M tokens."""
    strategy = pb.Strategy(kind="STRATEGY_KIND_SLIDING", window_size=4, stride=1)
    await target.rerank(_request("first", 2, 10), _TIMEOUT_S)  # which loads the model
    return Counter([await target.rerank(_request("first", 1000, 4000, strategy=strategy), LENGTH_S)])


async def unread_reflection(target: Target) -> Counter[str]:
    """64 streams of reflection that send 15 MB, read no answer, and stay for 30 s."""
    message = reflection_pb2.ServerReflectionRequest(file_containing_symbol="x" * _NAME_BYTES).SerializeToString()
    return await outcomes(_stay_without_reading(target, _REFLECTION, message, is_last=False) for _ in range(64))


async def empty_candidates(target: Target) -> Counter[str]:
    """30 messages of 15 MB at once, on a connection each, that are seven million empty candidates."""
    message = b"\x12\x00" * (7 * 2**20)

    async def send() -> str:
        async with target.another() as own:
            method: Any = own.channel.unary_unary(_METHOD)  # sends bytes as they are
            return await status_of(method(message, timeout=_TIMEOUT_S))

    return await outcomes(send() for _ in range(30))


async def silent_calls(target: Target) -> Counter[str]:
    """Two connections with 500 calls each that send no message; each call that ends is made again."""
    return await _kept_busy(target, connections=2, calls=500, send=_send_nothing, stays=True)


async def silent_calls_of_many(target: Target) -> Counter[str]:
    """The same with ten calls on each of 100 connections."""
    return await _kept_busy(target, connections=100, calls=10, send=_send_nothing, stays=True)


async def long_names_of_health(target: Target) -> Counter[str]:
    """48 connections that watch the health of a service whose name has 15 MB, again and again."""
    message = health_pb2.HealthCheckRequest(service="x" * _NAME_BYTES).SerializeToString()
    return await _kept_busy(target, connections=48, calls=1, send=lambda own: _first_answer(own, _WATCH, message))


async def long_names_of_reflection(target: Target) -> Counter[str]:
    """The same with the name of a symbol."""
    message = reflection_pb2.ServerReflectionRequest(file_containing_symbol="x" * _NAME_BYTES).SerializeToString()
    return await _kept_busy(target, connections=48, calls=1, send=lambda own: _first_answer(own, _REFLECTION, message))


async def short_deadlines(target: Target) -> Counter[str]:
    """64 calls at a time of 500 passages to the default, with deadlines of 3 ms and an answer instead of a failure."""
    message = _request("default", 500, 300, on_failure=pb.ON_FAILURE_FIRST_STAGE)
    return await _kept_busy(target, connections=8, calls=8, send=lambda own: own.rerank(message, 0.003))


async def cancelled_calls(target: Target) -> Counter[str]:
    """256 calls at a time of ten passages to pe-rank, that are cancelled after .5 ms."""
    message = _request("pe-rank", 10, 300)
    return await _kept_busy(target, connections=8, calls=32, send=lambda own: own.cancelled_rerank(message, 0.0005))


async def cancelled_calls_of_many(target: Target) -> Counter[str]:
    """The same from 64 connections with one call at a time."""
    message = _request("pe-rank", 10, 300)
    return await _kept_busy(target, connections=64, calls=1, send=lambda own: own.cancelled_rerank(message, 0.0005))


async def many_connections(target: Target) -> Counter[str]:
    """200 connections with one call at a time, of ten passages to pe-rank."""
    message = _request("pe-rank", 10, 300)
    return await _kept_busy(target, connections=200, calls=1, send=lambda own: own.rerank(message, _TIMEOUT_S))


async def batches(target: Target) -> Counter[str]:
    """Eight connections that keep 16 calls each in work, of 200 passages to pe-rank."""
    message = _request("pe-rank", 200, 300)
    return await _kept_busy(target, connections=8, calls=16, send=lambda own: own.rerank(message, _TIMEOUT_S))


async def health_watches(target: Target) -> Counter[str]:
    """20,000 watches of the health on 20 connections."""
    targets = [target.another() for _ in range(20)]
    request = health_pb2.HealthCheckRequest().SerializeToString()
    methods: list[Any] = [service.channel.unary_stream(_WATCH) for service in targets]
    calls = [method(request) for method in methods for _ in range(1000)]
    await asyncio.sleep(LENGTH_S)
    ends = Counter("ended by the service" if watch.done() else "waiting" for watch in calls)
    for service in targets:
        await service.channel.close()
    return ends


async def rapid_resets(target: Target) -> Counter[str]:
    """Four connections that make 3,000 calls/s each and cancel them at once; one that ends is opened again."""
    end_s, opened = time.monotonic() + LENGTH_S, Counter[str]()

    async def reset() -> None:
        async for reader, writer in _connections_until(end_s, target):
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

    await asyncio.gather(*(reset() for _ in range(4)))
    return opened


async def stops_after_given_up_calls(target: Target) -> Counter[str]:
    """Four stops of another service by SIGTERM, amid calls with deadlines of 3 ms and cancelled ones: how it exits."""
    message, ends = _request("pe-rank", 50, 300), Counter[str]()
    settings = {"models": [{"name": "pe-rank", "ranker": "pe-rank"}]}
    for _ in range(4):
        with running_service(settings) as service:
            stopped = asyncio.Event()

            async def give_up(own: Target, stopped: asyncio.Event = stopped) -> None:
                while not stopped.is_set():
                    await own.rerank(message, 0.003)
                    await own.cancelled_rerank(message, 0.003)

            async with Target(service.address, service.http_address) as own:
                calling = [asyncio.create_task(give_up(own)) for _ in range(32)]
                await asyncio.sleep(2)
                service.process.terminate()
                code = await asyncio.to_thread(service.process.wait, _TIMEOUT_S)
                stopped.set()
                await asyncio.gather(*calling)
            ends[f"exit {code}"] += 1
    return ends


def _request(model: str, passages: int, characters: int, **fields: Any) -> pb.RerankRequest:
    return random_request(random.Random(0), model, passages, characters, **fields)


async def _at_once(target: Target, messages: Sequence[pb.RerankRequest]) -> Counter[str]:
    return await outcomes(target.rerank(message, _TIMEOUT_S) for message in messages)


async def _kept_busy(
    target: Target, connections: int, calls: int, send: Callable[[Target], Awaitable[str]], stays: bool = False
) -> Counter[str]:
    """The statuses of calls that follow one another, `calls` at a time on each connection."""

    async def client() -> Counter[str]:
        async with target.another() as own:
            return await repeated(lambda: send(own), calls, stays)

    return sum(await asyncio.gather(*(client() for _ in range(connections))), Counter[str]())


async def _send_nothing(own: Target) -> str:
    method: Any = own.channel.stream_unary(_METHOD)
    return await status_of(method())


async def _first_answer(own: Target, path: str, message: bytes) -> str:
    """The status of a stream with one message, which ends after the first answer."""
    method: Any = own.channel.stream_stream(path)
    opened = method(iter([message]))
    try:
        await opened.read()
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "answered"


async def _stay_without_reading(target: Target, path: str, message: bytes, is_last: bool) -> str:
    """Sends a message on a new connection, reads no answer, and returns the state of the call in the end."""
    async with target.another() as own:
        method: Any = own.channel.stream_stream(path)
        stream = method()
        try:
            await stream.write(message)
            if is_last:
                await stream.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):  # refused while it was sent
            return "ended by the service"
        await asyncio.sleep(_STAY_S)
        return "ended by the service" if stream.done() else "waiting"


async def _connections_until(
    end_s: float, target: Target
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Opens connections one after another until a time, and ends each before the next."""
    while time.monotonic() < end_s:
        try:
            reader, writer = await asyncio.open_connection(*address_of(target.address))
        except OSError:
            await asyncio.sleep(_RESET_PAUSE_S)
            continue
        yield reader, writer
        writer.transport.abort()


async def _raw_connections(target: Target, connections: int, first: bytes, then: bytes = b"") -> Counter[str]:
    """Connections that send frames, and more of them for all that they receive; one that ends is opened again."""
    end_s, ends = time.monotonic() + LENGTH_S, Counter[str]()

    async def talk() -> None:
        async for reader, writer in _connections_until(end_s, target):
            writer.write(first)
            try:
                async with asyncio.timeout(end_s - time.monotonic()) as limit:
                    while await reader.read(65_536):
                        writer.write(then)
            except (OSError, TimeoutError):
                pass
            ends["open" if limit.expired() else "ended by the service"] += 1

    await asyncio.gather(*(talk() for _ in range(connections)))
    return ends


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass
