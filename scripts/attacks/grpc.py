"""Attacks over gRPC: on the engine, on the memory of the service, and by calls that send nothing or end at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from rerank.v1 import rerank_pb2 as pb
from scripts.attacks.target import LENGTH_S, Attack, Target, connections, held, outcomes, repeated, status_of
from scripts.http2_frames import call, message, preface, window_update
from scripts.random_requests import random_request
from scripts.service import running_service

_METHOD = "/rerank.v1.RerankService/Rerank"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_WATCH = "/grpc.health.v1.Health/Watch"
_TIMEOUT_S = 60.0
#: How long clients stay connected that do not read.
_STAY_S = 30.0
#: The flow-control window of clients that take an answer in pieces.
_TINY_WINDOW = 2
_PAIRS = pb.Strategy(kind="STRATEGY_KIND_SLIDING", window_size=2, stride=1)
_FOURS = pb.Strategy(kind="STRATEGY_KIND_SLIDING", window_size=4, stride=1)
_LONG_NAME = "x" * (15 * 2**20)
_LONG_SERVICE = health_pb2.HealthCheckRequest(service=_LONG_NAME).SerializeToString()
_LONG_SYMBOL = reflection_pb2.ServerReflectionRequest(file_containing_symbol=_LONG_NAME).SerializeToString()


def _request(model: str, passages: int, characters: int, seed: int = 0, **fields: Any) -> pb.RerankRequest:
    return random_request(random.Random(seed), model, passages, characters, **fields)


async def _at_once(target: Target, messages: Iterable[pb.RerankRequest], timeout_s: float = _TIMEOUT_S) -> Counter[str]:
    return await outcomes(target.rerank(message, timeout_s) for message in messages)


async def _kept_busy(
    target: Target, connections: int, calls: int, send: Callable[[Target], Awaitable[str]], stays: bool = False
) -> Counter[str]:
    """The statuses of calls that follow one another, `calls` at a time on each of the connections."""

    async def client() -> Counter[str]:
        async with Target(target.address) as own:
            return await repeated(lambda: send(own), calls, stays)

    return sum(await asyncio.gather(*(client() for _ in range(connections))), Counter[str]())


async def _send_nothing(own: Target) -> str:
    method: Any = own.channel.stream_unary(_METHOD)
    return await status_of(method())


async def _first_answer(own: Target, path: str, content: bytes) -> str:
    """The status of a stream with one message, which ends after the first answer."""
    method: Any = own.channel.stream_stream(path)
    opened = method(iter([content]))
    try:
        await opened.read()
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "answered"


async def _unread(target: Target, clients: int, path: str, content: bytes, is_last: bool) -> Counter[str]:
    """Sends a message on new connections, reads no answer, and returns the states of the calls in the end."""

    async def stay() -> str:
        async with Target(target.address) as own:
            method: Any = own.channel.stream_stream(path)
            stream = method()
            try:
                await stream.write(content)
                if is_last:
                    await stream.done_writing()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                # It was refused while it was sent.
                return "ended by the service"
            await asyncio.sleep(_STAY_S)
            return "ended by the service" if stream.done() else "waiting"

    return await outcomes(stay() for _ in range(clients))


async def _one_large_request(target: Target) -> Counter[str]:
    await target.rerank(_request("first", 2, 10), _TIMEOUT_S)  # which loads the model
    return await _at_once(target, [_request("first", 1000, 4000, strategy=_FOURS)], LENGTH_S)


async def _empty_candidates(target: Target) -> Counter[str]:
    async def send() -> str:
        async with Target(target.address) as own:
            method: Any = own.channel.unary_unary(_METHOD)  # sends bytes as they are
            return await status_of(method(b"\x12\x00" * (7 * 2**20), timeout=_TIMEOUT_S))

    return await outcomes(send() for _ in range(30))


async def _small_unread_answers(target: Target) -> Counter[str]:
    content = _request("identity", 2, 10).SerializeToString()
    calls = b"".join(call(stream, _METHOD) + message(stream, content) for stream in (1, 3, 5, 7))
    return await held([target.address] * 300, preface(window=0) + calls)


async def _tiny_windows(target: Target) -> Counter[str]:
    content = _request("identity", 100, 300, return_passages=True).SerializeToString()
    first = preface(window=_TINY_WINDOW) + call(1, _METHOD) + message(1, content)
    return await held([target.address] * 200, first, window_update(1, _TINY_WINDOW))


async def _calls_of_ended_connections(target: Target) -> Counter[str]:
    end_s, ends = time.monotonic() + LENGTH_S, Counter[str]()

    async def call_and_end() -> None:
        async for _, writer in connections(target.address, end_s, ends):
            ends["connections"] += 1
            writer.write(preface() + call(1, _METHOD))
            await writer.drain()

    await asyncio.gather(*(call_and_end() for _ in range(200)))
    return ends


async def _health_watches(target: Target) -> Counter[str]:
    targets = [Target(target.address) for _ in range(20)]
    request = health_pb2.HealthCheckRequest().SerializeToString()
    methods: list[Any] = [own.channel.unary_stream(_WATCH) for own in targets]
    calls = [method(request) for method in methods for _ in range(1000)]
    await asyncio.sleep(LENGTH_S)
    ends = Counter("ended by the service" if watch.done() else "waiting" for watch in calls)
    for own in targets:
        await own.channel.close()
    return ends


async def _stops_after_given_up_calls(_: Target) -> Counter[str]:
    content, ends = _request("pe-rank", 50, 300), Counter[str]()
    for _stop in range(4):
        with running_service({"models": [{"name": "pe-rank", "ranker": "pe-rank"}]}) as service:
            stopped = asyncio.Event()

            async def give_up(own: Target, stopped: asyncio.Event = stopped) -> None:
                while not stopped.is_set():
                    await own.rerank(content, 0.003)
                    await own.cancelled_rerank(content, 0.003)

            async with Target(service.address) as own:
                calling = [asyncio.create_task(give_up(own)) for _ in range(32)]
                await asyncio.sleep(2)
                service.process.terminate()
                code = await asyncio.to_thread(service.process.wait, _TIMEOUT_S)
                stopped.set()
                await asyncio.gather(*calling)
            ends[f"exit {code}"] += 1
    return ends


def _to_pe_rank(connections: int, calls: int, passages: int = 10) -> Attack:
    """Calls to pe-rank that follow one another, with passages of 300 characters."""

    async def attack(target: Target) -> Counter[str]:
        ask = partial(Target.rerank, message=_request("pe-rank", passages, 300), timeout_s=_TIMEOUT_S)
        return await _kept_busy(target, connections, calls, ask)

    return Attack(attack)


def _given_up(connections: int, calls: int) -> Attack:
    """Calls of ten passages to pe-rank that are cancelled after half a millisecond."""

    async def attack(target: Target) -> Counter[str]:
        ask = partial(Target.cancelled_rerank, message=_request("pe-rank", 10, 300), after_s=0.0005)
        return await _kept_busy(target, connections, calls, ask)

    return Attack(attack)


async def _short_deadlines(target: Target) -> Counter[str]:
    content = _request("default", 500, 300, on_failure=pb.ON_FAILURE_FIRST_STAGE)
    return await _kept_busy(target, 8, 8, partial(Target.rerank, message=content, timeout_s=0.003))


ATTACKS: dict[str, Attack] = {
    # No attack, for comparison: what the honest caller and other programs of the machine cost.
    "nothing": Attack(lambda target: _at_once(target, [])),
    # PE-Rank with 1,000 passages of 16,000 characters, cancelled after two seconds. It is refused if no part may do.
    "cancelled-encoding": Attack(
        lambda target: outcomes(
            [target.cancelled_rerank(_request("pe-rank", 1000, 16_000, allow_partial=True), after_s=2.0)]
        )
    ),
    # 80 passages of 200,000 characters.
    "long-passages-to-first": Attack(
        lambda target: _at_once(target, [_request("first", 80, 200_000, allow_partial=True)])
    ),
    # Ten sliding passes of window 2 over 1,000 tiny passages with identity: 110 kB, some 10,000 windows.
    "narrow-windows": Attack(
        lambda target: _at_once(target, [_request("identity", 1000, 4, seed, strategy=_PAIRS) for seed in range(10)])
    ),
    # 128 calls at once with one such pass.
    "narrow-windows-of-many": Attack(
        lambda target: _at_once(target, [_request("identity", 1000, 4, strategy=_PAIRS)] * 128)
    ),
    # 500 FIRST calls at once, of ten passages each.
    "flood-of-first": Attack(
        lambda target: _at_once(target, [_request("first", 10, 300, seed) for seed in range(500)])
    ),
    # 20 documents of 198,000 characters.
    "long-passages-to-default": Attack(lambda target: _at_once(target, [_request("default", 20, 198_000)])),
    # 60 requests of 16 MB at once.
    "large-requests": Attack(lambda target: _at_once(target, [_request("identity", 80, 199_000)] * 60)),
    # 20 clients that ask for answers of 15 MB and do not read them for 30 s.
    "unread-answers": Attack(
        lambda target: _unread(
            target, 20, _METHOD, _request("identity", 75, 199_000, return_passages=True).SerializeToString(), True
        )
    ),
    # 64 streams of reflection that send 15 MB, read no answer, and stay for 30 s.
    "unread-reflection": Attack(lambda target: _unread(target, 64, _REFLECTION, _LONG_SYMBOL, False)),
    # 300 connections with four calls each whose small answers fit into no window; one that ends is opened again.
    "small-unread-answers": Attack(_small_unread_answers),
    # 200 connections that take an answer of 30 kB two bytes at a time.
    "tiny-windows": Attack(_tiny_windows),
    # 200 connections that end after the headers of one call, each opened again at once.
    "calls-of-ended-connections": Attack(_calls_of_ended_connections),
    # One call of 1,000 passages of 4,000 characters to FIRST in windows of 4 with a stride of 1: 7.7M tokens.
    "one-large-request": Attack(_one_large_request),
    # 30 messages of 15 MB at once, on a connection each, that are seven million empty candidates.
    "empty-candidates": Attack(_empty_candidates),
    # Two connections with 500 calls each that send no message; each call that ends is made again. Then 100 with ten.
    "silent-calls": Attack(lambda target: _kept_busy(target, 2, 500, _send_nothing, stays=True)),
    "silent-calls-of-many": Attack(lambda target: _kept_busy(target, 100, 10, _send_nothing, stays=True)),
    # 48 connections that watch the health of a service whose name has 15 MB, or ask for a symbol, again and again.
    "long-names-of-health": Attack(
        lambda target: _kept_busy(target, 48, 1, partial(_first_answer, path=_WATCH, content=_LONG_SERVICE))
    ),
    "long-names-of-reflection": Attack(
        lambda target: _kept_busy(target, 48, 1, partial(_first_answer, path=_REFLECTION, content=_LONG_SYMBOL))
    ),
    # 64 calls at a time of 500 passages to the default, with deadlines of 3 ms and an answer instead of a failure.
    "short-deadlines": Attack(_short_deadlines),
    "cancelled-calls": _given_up(8, 32),
    "cancelled-calls-of-many": _given_up(64, 1),
    "many-connections": _to_pe_rank(200, 1),
    "batches": _to_pe_rank(8, 16, passages=200),
    # 20,000 watches of the health on 20 connections.
    "health-watches": Attack(_health_watches),
    # Four stops of another service by SIGTERM, amid calls with deadlines of 3 ms and cancelled ones: how it exits.
    "stops-after-given-up-calls": Attack(_stops_after_given_up_calls),
}
