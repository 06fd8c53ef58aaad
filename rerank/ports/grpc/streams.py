"""Streams beside the service's own methods, health watches and reflection: bounded in number, size and time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from rerank.errors import Overloaded, RerankError
from rerank.ports.grpc.handlers import Context, GrpcCall, Handler, HangUp, abort
from rerank.ports.health import Health
from rerank.ports.message_methods import short_message
from rerank.service.limits import CallInFlight, CallsInFlight

#: Watches of the health that may be open, of one connection and in all. Clients that watch have one on a connection.
_WATCHES = 8, 512
#: Streams of reflection. Tools have one or two, for some seconds.
_REFLECTIONS = 2, 16
#: Seconds before each answer of reflection, which takes a millisecond of the event loop.
_REFLECTION_PAUSE_S = 0.02

#: Makes the answers to the messages of a stream. Raises: RerankError.
Answers: TypeAlias = Callable[[AsyncIterator[bytes]], AsyncIterator[Message]]


def watch_handler(health: Health, calls: CallsInFlight, hang_up: HangUp) -> Handler:
    async def answers(messages: AsyncIterator[bytes]) -> AsyncIterator[Message]:
        async for status in health.watch(short_message(health_pb2.HealthCheckRequest, await anext(messages, b""))):
            yield status

    return _stream_handler(answers, _OpenStreams("health watches", *_WATCHES), calls, hang_up)


def reflection_handler(services: Sequence[str], calls: CallsInFlight, hang_up: HangUp) -> Handler:
    """The handler of ServerReflectionInfo, which describes these services."""
    reflection = ReflectionServicer(services)

    async def answers(messages: AsyncIterator[bytes]) -> AsyncIterator[Message]:
        async for message in messages:
            request = short_message(reflection_pb2.ServerReflectionRequest, message)
            await asyncio.sleep(_REFLECTION_PAUSE_S)
            for answer in reflection.ServerReflectionInfo(iter([request]), None):
                yield answer

    return _stream_handler(answers, _OpenStreams("streams of reflection", *_REFLECTIONS), calls, hang_up)


class _OpenStreams:
    """Bounds the streams that are open. For one too many, the oldest of the connection ends that has most of them.

    Args:
        name: what they are called in errors.
        of_one: the most of one connection.
        in_all: the most of all connections.
    """

    def __init__(self, name: str, of_one: int, in_all: int) -> None:
        self._name, self._of_one, self._in_all = name, of_one, in_all
        self._open: dict[asyncio.Timeout, str] = {}

    @asynccontextmanager
    async def open(self, peer: str) -> AsyncIterator[None]:
        """Counts a stream as open in the block. Raises: Overloaded, also if the stream has to give way."""
        number_of = Counter(self._open.values())
        if number_of[peer] >= self._of_one:
            raise self._overloaded(f"{self._of_one} {self._name} of this connection are open, the most that may be")
        if len(self._open) >= self._in_all:
            ((busiest, _),) = number_of.most_common(1)
            oldest = next(limit for limit, other in self._open.items() if other == busiest)
            del self._open[oldest]
            if not oldest.expired():
                oldest.reschedule(0)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._open[limit] = peer
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._overloaded(f"{self._in_all} {self._name} are open, the most that may be") from error
        finally:
            self._open.pop(limit, None)

    def _overloaded(self, problem: str) -> Overloaded:
        return Overloaded(f"{problem}; open it again in 1 s", 1.0, {"exceeded": self._name})


class _StreamCall(GrpcCall):
    """A call of several messages; `has_ended` once it has no more."""

    has_ended = False

    async def read(self, place: AbstractAsyncContextManager[None]) -> bytes:
        """The next message; empty at the end."""
        async with place:
            message: Any = await self._context.read()
        self.has_ended = message is grpc.aio.EOF
        return b"" if self.has_ended else bytes(message)


def _stream_handler(answers: Answers, streams: _OpenStreams, calls: CallsInFlight, hang_up: HangUp) -> Handler:
    async def messages_of(port: _StreamCall, call: CallInFlight) -> AsyncIterator[bytes]:
        while (message := bytes(await call.receive())) or not port.has_ended:
            yield message

    async def handle(_: object, context: Context) -> AsyncIterator[bytes]:
        port = _StreamCall(context, hang_up)
        later = asyncio.get_running_loop().call_later
        try:
            with calls.enter(port, "stream") as call:
                async with streams.open(port.peer):
                    async for answer in answers(messages_of(port, call)):
                        unread = later(calls.limits.max_transfer_s, port.hang_up)
                        try:
                            yield answer.SerializeToString()
                        finally:
                            unread.cancel()
        except RerankError as error:
            await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(handle)
