"""Threads that run functions in turn: a model's, and one that callers share, for work that no model does."""

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
#: None ends the thread.
_Call: TypeAlias = Callable[[], object] | None
#: The longest slice of work; work that takes less than a millisecond needs no thread.
_SLICE_S, _SHORT_MS = 0.005, 1.0
#: Seconds until a function counts as hanging.
_LIMIT_S = 600.0


def shutting_down() -> ShuttingDown:
    return ShuttingDown("the service is stopping; try another replica")


class Worker:
    """A daemon thread: unlike an executor's, it does not block shutdown when a model hangs.

    Args:
        name: of its work.

    Attributes:
        problem: what hangs; empty while nothing does.
    """

    def __init__(self, name: str) -> None:
        self.problem = ""
        self._name, self._has_ended = name, False
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        #: Seconds that the running function has waited for others, which preempted it.
        self._paused_s = 0.0
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[[S], T], argument: S, limit_s: float) -> tuple[T, float]:
        """Calls a function; returns its result and its duration in seconds, without the functions that preempted it.

        Raises: ShuttingDown; RankerFailure, the function has not ended after `limit_s`, or an earlier one has not yet;
        RankerFailure for a panic of Rust; what the function raises, and RuntimeError for what is not an Exception.
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
        """Runs the functions that wait. Called on the thread, in the middle of a function."""
        with suppress(Empty):
            while call := self._calls.get_nowait():
                call()
            self._calls.put(None)  # it ends once the running function has

    def end(self) -> None:
        """Lets the thread end after the functions that wait; further ones fail with ShuttingDown."""
        self._has_ended = True
        self._calls.put(None)

    def _hang(self, done: asyncio.Future[Any], limit_s: float) -> None:
        self.problem = f"{self._name} has not ended after {limit_s:.0f} s; restart the service if it never does"
        log.error("%s", self.problem)
        done.set_exception(RankerFailure(self.problem))

    def _end(self, done: asyncio.Future[Any], result: tuple[Any, float] | None, error: Exception | None) -> None:
        """Hands over what a function returned or raised, on the event loop."""
        if self.problem:
            log.warning("%s has ended after all", self._name)
            self.problem = ""
        if done.done():
            return  # nobody waits for it
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
            if is_rust_panic(error):  # as by a regex in the tokenizer.json of a folder
                failure = RankerFailure(
                    f"a library stopped at a text: {error}; use another checkpoint or shorter texts"
                )
            failure.__cause__ = error
        with suppress(RuntimeError):  # the event loop has ended
            done.get_loop().call_soon_threadsafe(self._end, done, result, failure)
        self._paused_s = paused_s + time.perf_counter() - start_s


class SharedWorker:
    """A thread that callers use in turns: each of them has one slice of work, or one function, in its line at a time.

    There is one thread, because each one that runs Python keeps the event loop from the interpreter.

    Args:
        name: of its work.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Further work fails with ShuttingDown."""
        self._worker.end()

    async def run(self, caller: str, work: SlicedWork[T], expected_ms: float) -> T:
        """Runs work in slices, and returns its result. If it is cancelled, no further slice runs.

        Args:
            expected_ms: about how long the work takes; short work is done at once, on the event loop.

        Raises: ShuttingDown; what the work raises.
        """
        if expected_ms <= _SHORT_MS:
            return _slice(work, float("inf")).result
        while not (done := await self.call(caller, partial(_slice, work, _SLICE_S))).is_last:
            pass
        return done.result

    async def call(self, caller: str, function: Callable[[], T]) -> T:
        """Calls a function on the thread. Raises: ShuttingDown; what the function raises."""
        async with self._turns.setdefault(caller, asyncio.Lock()):
            result, _ = await self._worker.call(operator.call, function, _LIMIT_S)
            return result


class _Slice(NamedTuple, Generic[T]):
    """The end of a slice; `result` is the work's result if it was the last one."""

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
