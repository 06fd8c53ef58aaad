"""Streams next to the service's methods, health watches and reflection: bounded in number, size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from rerank.errors import RerankError
from rerank.ports.grpc.handlers import Context, GrpcCall, Handler, HangUp, abort, short_message
from rerank.ports.health import Health
from rerank.service.limits import CallInFlight, CallsInFlight

#: Watches of the health and streams of reflection that may be open; one connection may have three quarters of them.
_WATCHES, _REFLECTIONS = 512, 16
#: Answers of reflection that are kept: one about a file takes a millisecond of the event loop.
_KEPT_ANSWERS = 1024

#: Makes the answers to the messages of a stream. Raises: RerankError.
Answers: TypeAlias = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


def watch_handler(health: Health, checks: CallsInFlight, hang_up: HangUp) -> Handler:
    async def answers(messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for status in health.watch(short_message(health_pb2.HealthCheckRequest, await anext(messages, b""))):
            yield status.SerializeToString()

    return _stream_handler("Watch", answers, checks.of_streams(_WATCHES), hang_up)


def reflection_handler(services: Sequence[str], calls: CallsInFlight, hang_up: HangUp) -> Handler:
    """The handler of ServerReflectionInfo, which describes these services."""
    reflection = ReflectionServicer(services)

    @lru_cache(_KEPT_ANSWERS)
    def answer(message: bytes) -> bytes:
        request = short_message(reflection_pb2.ServerReflectionRequest, message)
        (found,) = reflection.ServerReflectionInfo(iter([request]), None)
        return bytes(found.SerializeToString())

    async def answers(messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for message in messages:
            yield answer(message)

    return _stream_handler("ServerReflectionInfo", answers, calls.of_streams(_REFLECTIONS), hang_up)


class _StreamCall(GrpcCall):
    """A call of several messages; `has_ended` once it has no more."""

    has_ended = False

    async def read(self, place: AbstractAsyncContextManager[None]) -> bytes:
        """The next message; empty at the end."""
        async with place:
            message: Any = await self._context.read()
        self.has_ended = message is grpc.aio.EOF
        return b"" if self.has_ended else bytes(message)


def _stream_handler(name: str, answers: Answers, calls: CallsInFlight, hang_up: HangUp) -> Handler:
    async def messages_of(port: _StreamCall, call: CallInFlight) -> AsyncIterator[bytes]:
        while (message := bytes(await call.receive())) or not port.has_ended:
            yield message

    async def handle(_: object, context: Context) -> AsyncIterator[bytes]:
        port = _StreamCall(context, hang_up)
        later = asyncio.get_running_loop().call_later
        try:
            with calls.enter(port, name) as call:
                async for answer in answers(messages_of(port, call)):
                    unread = later(calls.limits.max_transfer_s, port.hang_up)
                    try:
                        yield answer
                    finally:
                        unread.cancel()
        except RerankError as error:
            await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(handle)
