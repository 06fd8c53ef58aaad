"""Threads that run functions one after the other: a model's thread, and a thread that callers share."""

from __future__ import annotations

import asyncio
import logging
import operator
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from rerank.errors import RankerFailure, ShuttingDown, is_rust_panic
from rerank.types import SlicedWork

log = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")
#: A function for the thread to call; None ends the thread.
_Call: TypeAlias = Callable[[], object] | None
#: Duration of a slice of a caller's work, after which the work of other callers can run.
_SLICE_S = 0.005
#: Longest expected time of work that runs on the event loop.
_SHORT_MS = 1.0
#: Time after which a function on a shared thread counts as hanging.
_HANG_S = 600.0


def shutting_down() -> ShuttingDown:
    return ShuttingDown("the service is stopping; try another replica")


class Worker:
    """A daemon thread. A model that hangs does not block the end of the process, as a thread of an executor would.

    Args:
        name: name of the thread, for errors, too.

    Attributes:
        problem: the message about a function that hangs; empty if none does.
    """

    def __init__(self, name: str) -> None:
        self.problem = ""
        self._name, self._has_ended = name, False
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        #: Time in seconds of the functions that preempted the running function.
        self._paused_s = 0.0
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[[S], T], argument: S, limit_s: float) -> tuple[T, float]:
        """Calls a function on the thread.

        Args:
            limit_s: time in seconds after which the function counts as hanging.

        Returns:
            The result of the function, and its duration in seconds without the functions that preempted it.

        Raises:
            ShuttingDown: the worker has ended.
            RankerFailure: the function hangs, an earlier function hangs, or a library in Rust panicked.
            Exception: the exception of the function; a RuntimeError in place of a BaseException.
        """
        if self._has_ended:
            raise shutting_down()
        if self.problem:
            raise RankerFailure(self.problem)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[T, float]] = loop.create_future()
        self._calls.put(partial(self._call, partial(function, argument), done))
        limit = loop.call_later(limit_s, self._hang, done, limit_s)
        try:
            return await done
        finally:
            limit.cancel()

    def run_waiting(self) -> None:
        """Runs the waiting functions. A running function calls it on the thread, so that they preempt the function."""
        with suppress(Empty):
            while call := self._calls.get_nowait():
                call()
            self._calls.put(None)  # the None of `end` was taken: the thread ends after the running function

    def end(self) -> None:
        """Ends the thread after the waiting functions. Further calls fail with ShuttingDown."""
        self._has_ended = True
        self._calls.put(None)

    def _hang(self, done: asyncio.Future[Any], limit_s: float) -> None:
        self.problem = f"{self._name} has not ended after {limit_s:.0f} s; restart the service if it never does"
        log.error("%s", self.problem)
        done.set_exception(RankerFailure(self.problem))

    def _end(self, done: asyncio.Future[Any], result: tuple[Any, float] | None, error: Exception | None) -> None:
        """Passes the result or the exception of a function to its caller. Called on the event loop."""
        if self.problem:
            log.warning("%s has ended after all", self._name)
            self.problem = ""
        if done.done():
            return  # the caller was cancelled
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def _run(self) -> None:
        while call := self._calls.get():
            call()

    def _call(self, function: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            return
        start_s, paused_s, self._paused_s = time.perf_counter(), self._paused_s, 0.0
        result: tuple[Any, float] | None = None
        failure: Exception | None = None
        try:
            result = function(), time.perf_counter() - start_s - self._paused_s
        except Exception as error:
            failure = error
        except BaseException as error:
            failure = RuntimeError(repr(error))
            if is_rust_panic(error):  # for example, because of a regular expression in tokenizer.json
                failure = RankerFailure(
                    f"a library stopped at a text: {error}; use another checkpoint or shorter texts"
                )
            failure.__cause__ = error
        with suppress(RuntimeError):  # the event loop has ended
            done.get_loop().call_soon_threadsafe(self._end, done, result, failure)
        self._paused_s = paused_s + time.perf_counter() - start_s


class SharedWorker:
    """A thread that callers share in turn: each caller has at most one slice or function in the thread's queue.

    There is one thread for all callers, because each thread that runs Python holds up the event loop by the
    interpreter's lock.

    Args:
        name: name of the thread, for errors, too.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Ends the thread. Further work fails with ShuttingDown."""
        self._worker.end()

    async def run(self, caller: str, work: SlicedWork[T], expected_ms: float) -> T:
        """Runs work in slices, and returns its result. If the caller is cancelled, no further slice runs.

        Args:
            caller: name of the caller.
            expected_ms: expected time of the work; at most a millisecond runs at once on the event loop.

        Raises:
            ShuttingDown: the worker has ended.
            RankerFailure: see `Worker.call`.
            Exception: the exception of the work.
        """
        if expected_ms <= _SHORT_MS:
            return _slice(work, float("inf")).result
        while not (done := await self.call(caller, partial(_slice, work, _SLICE_S))).is_last:
            pass
        return done.result

    async def call(self, caller: str, function: Callable[[], T]) -> T:
        """Calls a function on the thread when the caller's former call has ended. Raises: see `run`."""
        async with self._locks.setdefault(caller, asyncio.Lock()):
            result, _ = await self._worker.call(operator.call, function, _HANG_S)
            return result


class _Slice(NamedTuple, Generic[T]):
    """The outcome of a slice of work: whether the work has ended, and its result if it has."""

    is_last: bool
    result: T


def _slice(work: SlicedWork[T], seconds: float) -> _Slice[T]:
    until_s = time.perf_counter() + seconds
    try:
        while time.perf_counter() < until_s:
            next(work)
    except StopIteration as end:
        return _Slice(True, end.value)
    return _Slice(False, None)  # type: ignore[arg-type]
