"""Runs many requests of one caller: a bounded number at once, in their order, and again after a refusal."""

from __future__ import annotations

import asyncio
import math
import reprlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import track

from rerank.errors import Overloaded

T = TypeVar("T")
U = TypeVar("U")
R_co = TypeVar("R_co", covariant=True)

#: Requests of a stream that are in work at the same time: enough to fill the batches of a short prompt's model.
IN_WORK = 64


class Pace:
    """Runs the requests of a caller's streams. One that is refused beside others waits until one of them has ended.

    Without it, a stream would fill the queue by itself, and its own requests would be refused.
    """

    def __init__(self) -> None:
        self._running = 0
        self._next_end = asyncio.Event()

    def begin(self) -> None:
        """Counts a request that runs, such as one outside of the streams, until `end`."""
        self._running += 1

    def end(self) -> None:
        """Ends a request that `begin` has counted: those that wait are started again."""
        self._running -= 1
        self._next_end.set()
        self._next_end = asyncio.Event()

    async def run(self, work: Callable[[], Awaitable[T]], deadline_s: float = math.inf) -> T:
        """Runs the work, again after it was refused, and returns its result.

        Args:
            work: may be called several times.
            deadline_s: the time of the event loop's clock at which it is started again in any case.

        Raises:
            Overloaded: the work was refused although no other one of the caller is running.
        """
        while True:
            next_end = self._next_end
            self.begin()
            try:
                result = await work()
            except Overloaded:
                if self._running == 1 and not next_end.is_set():
                    self.end()
                    raise
                self._running -= 1  # nothing that others wait for has ended
            except BaseException:
                self.end()
                raise
            else:
                self.end()
                return result
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await next_end.wait()


class Started(Protocol[R_co]):
    """A request that was started, as a Future is one."""

    def result(self) -> R_co:
        """Waits for the result."""
        ...

    def cancel(self) -> object:
        """Gives it up."""
        ...


def in_order(
    items: Iterable[T], start: Callable[[T], Started[R_co]], weight: Callable[[T], float] = lambda item: 1 / IN_WORK
) -> Iterator[R_co]:
    """The results of items in their order. Items are read and started as long as the sum of their weights is below 1.

    What was started is cancelled when the iterator is closed.
    """
    started = deque[tuple[float, Started[R_co]]]()
    total = 0.0
    try:
        for item in items:
            started.append((weight(item), start(item)))
            total += started[-1][0]
            while started and total >= 1:
                total -= started[0][0]
                yield started.popleft()[1].result()
        while started:
            yield started.popleft()[1].result()
    finally:
        for _, each in started:
            each.cancel()


def pair_of(value: tuple[T, U], parts: str = "(query, candidates)") -> tuple[T, U]:
    """The value, if it is a pair of these parts. Raises: TypeError."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    raise TypeError(f"{reprlib.repr(value)} is no pair {parts}")


def with_bar(results: Iterable[R_co], of: Iterable[object], show: bool) -> Iterator[R_co]:
    """The results, one of each of these items, with a progress bar on a terminal or in a notebook if it is wanted."""
    console = Console(stderr=True)
    if not show or not (console.is_terminal or console.is_jupyter):
        yield from results
        return
    total = len(of) if isinstance(of, Sized) else None
    yield from track(results, "requests", total=total, console=console)
