"""A call that Ray Serve hands to a replica."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rerank.ports.ray_serve.proxy import TIME_REMAINING

if TYPE_CHECKING:
    from ray.serve.grpc_util import RayServegRPCContext


class RayCall:
    """A unary call, see `rerank.service.call.Call`.

    Args:
        message: the bytes of the request.
        context: what Ray Serve tells of the call.
    """

    def __init__(self, message: bytes, context: RayServegRPCContext) -> None:
        self._message = message
        self._on_done: list[Callable[[], object]] = []
        self.peer = context.peer()
        self.headers = list(context.invocation_metadata())
        remaining_s = float(dict(self.headers).get(TIME_REMAINING, math.inf))
        self.deadline = asyncio.get_running_loop().time() + remaining_s

    async def read(self) -> bytes:
        """The bytes of the request."""
        return self._message

    def on_done(self, function: Callable[[], object]) -> None:
        """Registers what to call when the call was answered or cancelled."""
        self._on_done.append(function)

    def hang_up(self) -> None:
        """Does nothing: the connections are those of Ray Serve's proxy."""

    def finish(self) -> None:
        """Calls what `on_done` has registered."""
        for function in self._on_done:
            function()
