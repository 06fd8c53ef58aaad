"""gRPC's handlers: each calls a method of messages, and writes its reply or its status."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn, TypeAlias

import grpc
from grpc_status import rpc_status

from rerank.errors import InvalidRequest
from rerank.ports.message_methods import MessageMethod
from rerank.protobuf.status import status_of
from rerank.service.limits import REQUEST_ID, request_id_of

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
#: A grpc.RpcMethodHandler; its type stubs are made for synchronous servers.
Handler: TypeAlias = Any
#: Ends the connection of a client, which has the form of gRPC's peers.
HangUp: TypeAlias = Callable[[str], None]


class GrpcCall:
    """A call of gRPC, see `rerank.service.limits.PortCall`.

    Args:
        context: what gRPC knows of the call.
        hang_up: ends the connection of a client.
    """

    def __init__(self, context: Context, hang_up: HangUp) -> None:
        self._context, self._hang_up = context, hang_up
        self.peer = context.peer()
        self.headers = list(context.invocation_metadata() or ())
        self.request_id = request_id_of(self.headers)
        remaining_s = context.time_remaining()
        self.deadline_s = math.inf if remaining_s is None else asyncio.get_running_loop().time() + remaining_s

    async def read(self, place: AbstractAsyncContextManager[None]) -> bytes:
        """The message. Its size is not known before. Raises: InvalidRequest if there is none."""
        async with place:
            message: Any = await self._context.read()
        if message is grpc.aio.EOF:
            raise InvalidRequest("request", "the call ended without a message; send one")
        return bytes(message)

    def on_done(self, function: Callable[[], object]) -> None:
        """Registers what to call at the end of the call."""
        self._context.add_done_callback(lambda _: function())  # type: ignore[arg-type]  # the stubs want a class

    def hang_up(self) -> None:
        """Ends the client's connection."""
        self._hang_up(self.peer)


def unary_handlers(methods: Mapping[str, MessageMethod], hang_up: HangUp) -> dict[str, Handler]:
    """Handlers of methods by their names.

    A call is handled as a stream of one message, so that it can be refused before its message is received.
    """
    return {name: grpc.stream_unary_rpc_method_handler(_handle(method, hang_up)) for name, method in methods.items()}


def _handle(method: MessageMethod, hang_up: HangUp) -> Callable[[object, Context], Any]:
    async def handle(_: object, context: Context) -> bytes:  # an iterator over the messages would keep the last one
        call = GrpcCall(context, hang_up)
        named = (REQUEST_ID, call.request_id)
        try:
            reply = await method(call)
        except Exception as error:
            failure = error
        else:
            context.set_trailing_metadata([named])
            return reply
        return await abort(context, failure, named)

    return handle


async def abort(context: Context, error: Exception, *metadata: tuple[str, str]) -> NoReturn:
    """Ends a call with the status of an error.

    Args:
        metadata: that the client gets with the status.

    Raises:
        AbortError: the call has ended.
        CancelledError: the client's connection ended before, which gRPC would log as a failure of ours.
    """
    error.__traceback__ = None  # the exception of `abort` lives on, with this one and the messages in its frames
    status = rpc_status.to_status(status_of(error))
    try:
        await context.abort(status.code, status.details, (*status.trailing_metadata, *metadata))
    except grpc.aio.InternalError as failure:
        raise asyncio.CancelledError("the connection ended before the call") from failure
    raise AssertionError("abort returned; this is a bug")
