"""The pace of many requests of one caller: how many are in work, and what becomes of one that finds no room."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from rerank.errors import Overloaded

T = TypeVar("T")

#: Requests of a stream that are in work at the same time: enough to fill the batches of a short prompt's model.
IN_WORK = 64


class Pace:
    """Runs requests of one stream. One that is refused beside others of the stream waits until one of them has ended.

    Without it, a stream would fill the queue by itself, and its own requests would be refused.
    """

    def __init__(self) -> None:
        self._running = 0
        self._next_end = asyncio.Event()

    async def run(self, work: Callable[[], Awaitable[T]], deadline: Callable[[], float] = lambda: math.inf) -> T:
        """The result of the work, which is started again after it was refused.

        Args:
            work: may be called several times.
            deadline: when it is started again also without room, in seconds on the event loop's clock.

        Raises:
            Overloaded: the work was refused although no other one of the stream is running.
        """
        while True:
            next_end, waits = self._next_end, False
            self._running += 1
            try:
                return await work()
            except Overloaded:
                waits = self._running > 1 or next_end.is_set()
                if not waits:
                    raise
            finally:
                self._running -= 1
                if not waits:
                    self._next_end.set()
                    self._next_end = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline()):
                    await next_end.wait()
