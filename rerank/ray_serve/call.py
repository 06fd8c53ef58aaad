"""A call that Ray Serve hands to a replica, with the methods of a gRPC context."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from rerank.grpc.servicer import request_id_of
from rerank.ray_serve.proxy import TIME_REMAINING
from rerank.service.status import REQUEST_ID

if TYPE_CHECKING:
    from ray.serve.grpc_util import RayServegRPCContext

Metadata = Sequence[tuple[str, str | bytes]]


class RayCall:
    """A unary call. `GuardedServer` and `CallsInFlight` use it in the place of a gRPC context.

    Args:
        message: the bytes of the request.
        context: what Ray Serve tells of the call; the status set on it reaches the caller.
    """

    def __init__(self, message: bytes, context: RayServegRPCContext) -> None:
        self._message, self._context = message, context
        remaining_s = float(dict(context.invocation_metadata()).get(TIME_REMAINING, math.inf))
        self._deadline = asyncio.get_running_loop().time() + remaining_s
        self._callbacks: list[Callable[[RayCall], object]] = []
        self.set_trailing_metadata([(REQUEST_ID, request_id_of(self.as_context))])

    @property
    def as_context(self) -> Any:
        """This object in the place of a gRPC context, of which it has what is used."""
        return self

    def peer(self) -> str:
        """The address of the caller, as the proxy sees it."""
        return self._context.peer()

    def invocation_metadata(self) -> Metadata:
        """The metadata of the call."""
        return self._context.invocation_metadata()

    def time_remaining(self) -> float:
        """Seconds until the caller's deadline; infinity if it set none."""
        return self._deadline - asyncio.get_running_loop().time()

    async def read(self) -> bytes:
        """The bytes of the request."""
        return self._message

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Sets the metadata that follow the answer. REQUEST_ID tells the proxy that a replica ended the call."""
        self._context.set_trailing_metadata(list(metadata))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """Ends the call with a status, unless it has one already. Raises: AbortError."""
        if not self._context.code():
            self._context.set_code(code)
            self._context.set_details(details)
            if trailing_metadata:
                self.set_trailing_metadata(trailing_metadata)
        raise grpc.aio.AbortError(details)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Registers a function that is called with this object when the call was answered or cancelled."""
        self._callbacks.append(callback)

    def finish(self) -> None:
        """Calls the done callbacks."""
        for callback in self._callbacks:
            callback(self)
