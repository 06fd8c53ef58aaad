"""A thread that callers share, for work that no model does: dividing and grouping texts, large messages, searches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from rerank.engine.worker import Worker
from rerank.types import InSlices

T = TypeVar("T")

#: The longest slice of work; work that takes less than a millisecond needs no thread.
_SLICE_S, _SHORT_MS = 0.005, 1.0
#: Seconds after which a function is taken to hang.
_LIMIT_S = 600.0


class SharedWorker:
    """A thread on which callers take turns: each of them has one slice of work, or one function, in its line at a time.

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

    async def run(self, caller: str, work: InSlices[T], expected_ms: float) -> T:
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
            result, _ = await self._worker.call(function, _LIMIT_S)
            return result


class _Slice(NamedTuple, Generic[T]):
    """The end of a slice; `result` is that of the work if it was the last one."""

    is_last: bool
    result: T


def _slice(work: InSlices[T], seconds: float) -> _Slice[T]:
    until_s = time.perf_counter() + seconds
    try:
        while time.perf_counter() < until_s:
            next(work)
    except StopIteration as end:
        return _Slice(True, end.value)
    return _Slice(False, None)  # type: ignore[arg-type]
