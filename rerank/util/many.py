"""Runs many requests of one caller without an event loop: as many at once as get through, with the answers in order."""

from __future__ import annotations

import asyncio
import os
import reprlib
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sized
from concurrent.futures import Future
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from rerank.errors import RerankError, UsageError

T = TypeVar("T")
U = TypeVar("U")

#: Requests that are read ahead of the answer that is awaited: enough to fill the batches of a model.
MAX_AHEAD = 64
#: Requests that run before the first answer: until the engine has measured its speed, it could take more than it can
#: answer in time.
_INITIAL_CALLS = 4
#: Once a request was refused, every eighth answer tries whether there is more room.
_GROWTH = 1 / 8


class EventLoopThread:
    """An event loop that runs until `close`, or until nothing refers to this object.

    Args:
        name: the name of its thread.
    """

    def __init__(self, name: str) -> None:
        self._name, self._process = name, os.getpid()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end_loop, self._loop, thread, self._process)

    @property
    def is_closed(self) -> bool:
        """True after the end of the loop, when no work can be started."""
        return not self._end.alive

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts some work, from any thread. Raises: UsageError in a process that was forked later."""
        if os.getpid() != self._process:
            work.close()
            raise UsageError(
                f"this process was forked after its parent made the {self._name}, and has none of its threads; make "
                "another one in this process"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work."""
        return self.start(work).result()

    def close(self) -> None:
        """Cancels what runs, and ends the thread."""
        self._end()


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:  # the thread did not come along when this one was forked
        return

    async def cancel_tasks() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(cancel_tasks(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class ConcurrencyLimit:
    """Bounds how many requests of a batch run at once: more after each answer, fewer after a refusal.

    Without it, a batch would fill the queue by itself, and most of its requests would be refused.

    Args:
        is_refusal: whether a request that failed with this error may be sent again.
    """

    def __init__(self, is_refusal: Callable[[RerankError], bool]) -> None:
        self._is_refusal = is_refusal
        self._running, self._most = 0, float(_INITIAL_CALLS)
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
