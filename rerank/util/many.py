"""Runs many requests of one caller at once, and returns the answers in order; the caller needs no event loop.

The number of requests that run at once grows until the service refuses some.
"""

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

#: Requests that are started before the first of them is answered: enough to fill the batches of a model.
MAX_AHEAD = 64
#: Requests that run at once before the first answer: an engine that has not measured its speed yet may accept more than
#: it can answer in time.
_INITIAL_CALLS = 4
#: Added to the limit by each answer after the first refusal, so that one more request is tried after eight answers.
_GROWTH = 1 / 8


class EventLoopThread:
    """An event loop that runs on a thread until `close`, or until nothing refers to this object.

    Args:
        name: the name of the thread, which errors quote.
    """

    def __init__(self, name: str) -> None:
        self._name, self._process = name, os.getpid()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end_loop, self._loop, thread, self._process)

    @property
    def is_closed(self) -> bool:
        """True when the loop has ended, so that no work can be started."""
        return not self._end.alive

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine; may be called from any thread. Raises: UsageError in a process that was forked later."""
        if os.getpid() != self._process:
            work.close()
            raise UsageError(
                f"this process was forked after its parent made the {self._name}, and has none of its threads; make "
                "another one in this process"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result. Raises: UsageError as `start`, and the errors of the coroutine."""
        return self.start(work).result()

    def close(self) -> None:
        """Cancels the running work, and ends the thread."""
        self._end()


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:  # this process was forked later, and does not have the thread
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
    """Limits how many requests of a batch run at once. The limit rises after each answer and falls after a refusal.

    Without the limit, a batch would fill the queue by itself, and most of its requests would be refused.

    Args:
        is_refusal: whether a request that failed with this error may be sent again.
    """

    def __init__(self, is_refusal: Callable[[RerankError], bool]) -> None:
        self._is_refusal = is_refusal
        self._running, self._most = 0, float(_INITIAL_CALLS)
        self._was_refused = False
        self._next_end = asyncio.Event()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Sends a request when the limit allows it, and again after a refusal, and returns its answer.

        Args:
            work: sends the request; may be called several times.

        Raises:
            RerankError: the request failed, or was refused although no other request of the batch was running.
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
    """The results of the items, in their order. At most MAX_AHEAD items are started and not yet answered.

    The calls that still run are cancelled when the iterator is closed.
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
    """The two parts of a value. Raises: TypeError, which names the `parts`, if the value is not a pair."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    raise TypeError(f"{reprlib.repr(value)} is not a pair {parts}")


def with_bar(results: Iterable[T], of: Iterable[object], show: bool) -> Iterator[T]:
    """The results, with a progress bar if `show` is set and standard error is a terminal or a notebook.

    Args:
        of: the requests; their number, if it is known, is the length of the bar.
    """
    console = Console(stderr=True)
    if not show or not (console.is_terminal or console.is_jupyter):
        yield from results
        return
    total = len(of) if isinstance(of, Sized) else None
    yield from track(results, "requests", total=total, console=console)
