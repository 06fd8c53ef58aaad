"""Runs many requests of one caller: as many at once as get through, with the answers in the order of the requests."""

from __future__ import annotations

import asyncio
import reprlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized
from concurrent.futures import Future
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from rerank.errors import RerankError

T = TypeVar("T")
U = TypeVar("U")

#: Requests that are read ahead of the answer that is awaited: enough to fill the batches of a model.
MAX_AHEAD = 64
#: Requests that run before the first answer: until the engine has measured its speed, it could take more than it can
#: answer in time.
_AT_FIRST = 4
#: Once a request was refused, every eighth answer tries whether there is more room.
_GROWTH = 1 / 8


class ConcurrencyLimit:
    """Bounds how many requests of a batch run at once: more after each answer, fewer after a refusal.

    Without it, a batch would fill the queue by itself, and most of its requests would be refused.

    Args:
        is_refusal: whether a request that failed with this error may be sent again.
    """

    def __init__(self, is_refusal: Callable[[RerankError], bool]) -> None:
        self._is_refusal = is_refusal
        self._running, self._most = 0, float(_AT_FIRST)
        self._was_refused = False
        self._next_end = asyncio.Event()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs the work when there is room, again after it was refused while others ran, and returns its result.

        Args:
            work: may be called several times.

        Raises:
            RerankError: the work failed, or was refused although nothing else of the batch was running.
        """
        while True:
            while self._running >= int(self._most):
                await self._next_end.wait()
            was_alone = self._running == 0
            self._running += 1
            try:
                result = await work()
            except RerankError as error:
                if not self._is_refusal(error) or (was_alone and self._running == 1):
                    raise
                self._most, self._was_refused = max(1.0, self._running - 1), True
            else:
                self._most += _GROWTH if self._was_refused else 1
                return result
            finally:
                self._running -= 1
                self._next_end.set()
                self._next_end = asyncio.Event()


def in_order(items: Iterable[T], start: Callable[[T], Future[U]]) -> Iterator[U]:
    """The results of items in their order. At most MAX_AHEAD items are read and started before the first result.

    What was started is cancelled when the iterator is closed.
    """
    started = deque[Future[U]]()
    try:
        for item in items:
            started.append(start(item))
            if len(started) >= MAX_AHEAD:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
    finally:
        for future in started:
            future.cancel()


def pair_of(value: tuple[T, U], parts: str = "(query, candidates)") -> tuple[T, U]:
    """The value, if it is a pair of these parts. Raises: TypeError."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    raise TypeError(f"{reprlib.repr(value)} is not a pair {parts}")


def with_bar(results: Iterable[T], of: Iterable[object], show: bool) -> Iterator[T]:
    """The results, one of each of these items, with a progress bar on a terminal or in a notebook if it is wanted."""
    console = Console(stderr=True)
    if not show or not (console.is_terminal or console.is_jupyter):
        yield from results
        return
    total = len(of) if isinstance(of, Sized) else None
    yield from track(results, "requests", total=total, console=console)
