"""The methods of the services, from message to answer, for gRPC and Ray Serve; and gRPC's handlers of calls."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, partial
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer
from grpc_status import rpc_status

from rerank.config import Limits
from rerank.errors import InvalidRequest, RerankError
from rerank.ports.health import Health
from rerank.protobuf.field_count import FIELDS_PER_CANDIDATE, check_field_count
from rerank.protobuf.messages import (
    list_models_response,
    rerank_request,
    rerank_response,
    search_request,
    search_response,
)
from rerank.protobuf.status import status_of
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import REQUEST_ID, OnEnd, PortCall, only_value, request_id_of
from rerank.service.limits import CallInFlight, CallsInFlight
from rerank.service.requests import check_number_of_candidates
from rerank.v1 import rerank_pb2 as pb

log = logging.getLogger(__name__)

#: Largest number of bytes of a message of the health check or reflection: the name of a service, a symbol or a file.
_MAX_SHORT_BYTES = 4096

M = TypeVar("M", bound=Message)
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
#: A grpc.RpcMethodHandler; its type stubs are made for synchronous servers.
Handler: TypeAlias = Any
#: Ends the connection of a client, given as gRPC's peer, such as "ipv4:127.0.0.1:40000".
HangUp: TypeAlias = Callable[[str], None]
#: Answers a call with the bytes of a message. Raises: RerankError; CancelledError if the client has hung up.
MessageMethod: TypeAlias = Callable[[PortCall], Awaitable[bytes]]
#: Largest number of open streams of Health.Watch.
_WATCHES = 512
#: Largest number of open streams of reflection.
_REFLECTIONS = 16
#: Number of cached answers of reflection, because an answer about a file takes a millisecond of the event loop.
_KEPT_ANSWERS = 1024

#: Messages of a stream → the answers to them. Raises: RerankError.
Answers: TypeAlias = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


class RerankMethods:
    """The methods of RerankService.

    Args:
        reranker: answers the requests.
        calls: the calls in flight, with their limits and keys.
        on_end: called when a call has ended.
    """

    def __init__(self, reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> None:
        self._reranker, self._calls, self._on_end = reranker, calls, on_end

    @property
    def by_name(self) -> dict[str, MessageMethod]:
        return {"Rerank": self.rerank, "Search": self.search, "ListModels": self.list_models}

    async def rerank(self, port: PortCall) -> bytes:
        limits = self._calls.limits
        with self._calls.enter(port, "Rerank", self._on_end) as call:
            message = _counted_message(pb.RerankRequest, await call.receive(), limits)
            check_number_of_candidates(message.candidates, limits)
            call.request = request = await call.convert(self._reranker, rerank_request, message)
            call.request = request = await call.convert(self._reranker, request.checked, limits)
            async with call.answering() as (deadline_s, usage):
                call.result = ranking = await request.rank(self._reranker, deadline_s, usage)
            return call.reply(rerank_response(ranking, message).SerializeToString())

    async def search(self, port: PortCall) -> bytes:
        with self._calls.enter(port, "Search", self._on_end) as call:
            message = _counted_message(pb.SearchRequest, await call.receive(), self._calls.limits)
            call.request = request = search_request(message)
            call.request = request = request.checked(self._calls.limits)
            async with call.answering() as (deadline_s, usage):
                call.result = result = await request.rank(self._reranker, deadline_s, usage)
            return call.reply(search_response(result, message).SerializeToString())

    async def list_models(self, port: PortCall) -> bytes:
        with self._calls.enter(port, "ListModels", self._on_end) as call:
            _counted_message(pb.ListModelsRequest, await call.receive(), self._calls.limits)
            return call.reply(list_models_response(self._reranker).SerializeToString())


def health_methods(health: Health, calls: CallsInFlight) -> dict[str, MessageMethod]:
    """Returns the method Check, whose calls are logged at level DEBUG, because they come often."""
    return {"Check": partial(_check, health, calls)}


async def _check(health: Health, calls: CallsInFlight, port: PortCall) -> bytes:
    with calls.enter(port, "Check", partial(log.debug, "%s")) as call:
        message = short_message(health_pb2.HealthCheckRequest, await call.receive())
        return call.reply(health.check(message).SerializeToString())


def _counted_message(kind: type[M], message: bytes | bytearray, limits: Limits) -> M:
    """Parses a message. Raises: InvalidRequest if it has too many fields for `limits`, or is not of this type."""
    if len(message) > FIELDS_PER_CANDIDATE * limits.max_candidates:  # a field has at least a byte
        check_field_count(bytes(message), cast(Descriptor, kind.DESCRIPTOR), limits)
    return _message(kind, message)


def short_message(kind: type[M], message: bytes | bytearray) -> M:
    """Parses a message that holds only a name. Raises: InvalidRequest if it is too long, or not of this type."""
    if len(message) > _MAX_SHORT_BYTES:
        problem = f"{len(message)} bytes exceed the limit of {_MAX_SHORT_BYTES}; send the name of a service or symbol"
        raise InvalidRequest("request", problem)
    return _message(kind, message)


def _message(kind: type[M], message: bytes | bytearray) -> M:
    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidRequest("request", f"the bytes are not a message of this type: {error}") from error


class GrpcCall:
    """A call of gRPC, see `rerank.service.call.PortCall`.

    Args:
        context: what gRPC knows of the call.
        calls: the calls in flight; this call leaves them when the client has the answer, or when it ends otherwise.
        hang_up: ends the connection of a client.
    """

    def __init__(self, context: Context, calls: CallsInFlight, hang_up: HangUp) -> None:
        self._context, self._hang_up = context, hang_up
        context.add_done_callback(lambda _: calls.leave(self))  # type: ignore[arg-type]  # the stubs want a class
        self.peer = context.peer()
        self._headers = list(context.invocation_metadata() or ())
        self.request_id = request_id_of(self._headers)
        remaining_s = context.time_remaining()
        self.deadline_s = math.inf if remaining_s is None else asyncio.get_running_loop().time() + remaining_s

    @property
    def authorization(self) -> str | None:
        return only_value(self._headers, "authorization")

    async def read(self, slot: AbstractAsyncContextManager[None]) -> bytes:
        """Receives the message; its size is unknown before. Raises: InvalidRequest if there is none."""
        async with slot:
            message: Any = await self._context.read()
        if message is grpc.aio.EOF:
            raise InvalidRequest("request", "the call ended without a message; send one")
        return bytes(message)

    def hang_up(self) -> None:
        """Ends the client's connection."""
        self._hang_up(self.peer)


def unary_handlers(methods: Mapping[str, MessageMethod], calls: CallsInFlight, hang_up: HangUp) -> dict[str, Handler]:
    """Returns the handler of each method, by its name.

    A call is handled as a stream of one message, so that it can be refused before its message is received.
    """
    return {
        name: grpc.stream_unary_rpc_method_handler(partial(_handle, method, calls, hang_up))
        for name, method in methods.items()
    }


async def _handle(method: MessageMethod, calls: CallsInFlight, hang_up: HangUp, _: object, context: Context) -> bytes:
    """Answers a call. The argument `_`, gRPC's iterator over messages, is unused: it would keep the last message."""
    call = GrpcCall(context, calls, hang_up)
    named = (REQUEST_ID, call.request_id)
    try:
        reply = await method(call)
    except Exception as error:
        failure = error
    else:
        context.set_trailing_metadata([named])
        return reply
    return await abort(context, failure, named)


async def abort(context: Context, error: Exception, *metadata: tuple[str, str]) -> NoReturn:
    """Ends a call with the status of an error.

    Args:
        metadata: pairs of name and value that the client gets with the status.

    Raises:
        AbortError: the call has ended.
        CancelledError: the connection had ended, which gRPC would log as an error of the service.
    """
    error.__traceback__ = None  # gRPC keeps this exception, whose frames hold the messages
    status = rpc_status.to_status(status_of(error))
    try:
        await context.abort(status.code, status.details, (*status.trailing_metadata, *metadata))
    except grpc.aio.InternalError as failure:
        raise asyncio.CancelledError("the connection ended before the call") from failure
    raise AssertionError("abort returned; this is a bug")


def watch_handler(health: Health, checks: CallsInFlight, hang_up: HangUp) -> Handler:
    """Returns the handler of Health.Watch."""
    return _stream_handler("Watch", partial(_statuses, health), checks.for_streams(_WATCHES), hang_up)


async def _statuses(health: Health, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for status in health.watch(short_message(health_pb2.HealthCheckRequest, await anext(messages, b""))):
        yield status.SerializeToString()


def reflection_handler(services: Sequence[str], calls: CallsInFlight, hang_up: HangUp) -> Handler:
    """Returns the handler of ServerReflectionInfo, which describes these services."""
    describe = lru_cache(_KEPT_ANSWERS)(partial(_description, ReflectionServicer(services)))
    return _stream_handler(
        "ServerReflectionInfo", partial(_descriptions, describe), calls.for_streams(_REFLECTIONS), hang_up
    )


async def _descriptions(describe: Callable[[bytes], bytes], messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for message in messages:
        yield describe(message)


def _description(reflection: ReflectionServicer, message: bytes) -> bytes:
    request = short_message(reflection_pb2.ServerReflectionRequest, message)
    (found,) = reflection.ServerReflectionInfo(iter([request]), None)
    return bytes(found.SerializeToString())


class _StreamCall(GrpcCall):
    """A call of several messages; `has_ended` is True after the last one."""

    has_ended = False

    async def read(self, slot: AbstractAsyncContextManager[None]) -> bytes:
        """Receives the next message; empty after the last one."""
        async with slot:
            message: Any = await self._context.read()
        self.has_ended = message is grpc.aio.EOF
        return b"" if self.has_ended else bytes(message)

    async def messages(self, call: CallInFlight) -> AsyncIterator[bytes]:
        while (message := bytes(await call.receive())) or not self.has_ended:
            yield message


def _stream_handler(name: str, answers: Answers, calls: CallsInFlight, hang_up: HangUp) -> Handler:
    return grpc.stream_stream_rpc_method_handler(partial(_handle_stream, name, answers, calls, hang_up))


async def _handle_stream(
    name: str, answers: Answers, calls: CallsInFlight, hang_up: HangUp, _: object, context: Context
) -> AsyncIterator[bytes]:
    port, later = _StreamCall(context, calls, hang_up), asyncio.get_running_loop().call_later
    try:
        with calls.enter(port, name) as call:
            async for answer in answers(port.messages(call)):
                call.unread = later(calls.limits.max_transfer_s, port.hang_up)
                try:
                    yield answer
                finally:
                    call.unread.cancel()
    except RerankError as error:
        await abort(context, error)
