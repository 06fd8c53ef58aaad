"""Threads for work that no model does: dividing and grouping texts, reading large messages, and searching the index."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from rerank.engine.admission import Throughput
from rerank.engine.job import Job, ModelStage, Stage
from rerank.engine.stage import Observers, ThreadStage, now_s
from rerank.types import InSlices

T = TypeVar("T")

#: About the duration of a slice, and the longest that short work may take.
_SLICE_MS = 10
#: Work that runs as a whole, such as reading a message of 16 MB, counts as so long.
_WHOLE_MS = 50
#: The end of a work, None after any other slice; and the milliseconds that the slice took, at least one.
_Slice: TypeAlias = tuple[StopIteration | None, int]
_Thread: TypeAlias = ThreadStage[InSlices[Any], _Slice]


class WorkThreads:
    """Three threads: for short work, for long work and for searches. None of them waits for another one.

    On each thread callers take turns after each slice of work, as they do for the thread of a model. Their shares are
    counted in milliseconds. So long documents of one caller do not delay the others. There are no more threads, because
    each one that runs Python keeps the event loop from the interpreter.

    Args:
        age_factor: see Throughput.
    """

    def __init__(self, age_factor: float) -> None:
        self._short, self._long, self._search = (_thread(name, age_factor) for name in ("short", "long", "search"))

    def open(self) -> None:
        """Starts the threads."""
        for thread in (self._short, self._long, self._search):
            thread.open()

    async def close(self) -> None:
        """Lets the running slices finish; further work fails with ShuttingDown."""
        for thread in (self._short, self._long, self._search):
            await thread.close()

    async def run(self, caller: str, work: InSlices[T], expected_ms: float) -> T:
        """Runs work in slices and returns its result. If it is cancelled, no further slice runs.

        Args:
            caller: callers have equal shares of a thread.
            expected_ms: about how long the work takes. The shortest long work goes first.

        Raises: ShuttingDown; RerankError, as the work raises it; RankerFailure in the place of any other exception.
        """
        thread = self._short if expected_ms <= _SLICE_MS else self._long
        return await _run(thread, caller, work, expected_ms)

    async def call(self, caller: str, function: Callable[[], T]) -> T:
        """Calls a function on the thread for long work. Raises: ShuttingDown; as the function does."""
        return await _run_whole(self._long, caller, function)

    async def search(self, caller: str, function: Callable[[], T]) -> T:
        """Calls a function on the thread for searches. Raises: ShuttingDown; as the function does."""
        return await _run_whole(self._search, caller, function)


async def _run(thread: _Thread, caller: str, work: InSlices[T], expected_ms: float, slice_ms: int = 1) -> T:
    """Runs work whose first slice counts as so many milliseconds."""
    job = Job(caller, now_s(), remaining={thread.model_stage: 1 + expected_ms})
    while True:  # a slice counts as long as the one before, because its own time is known only afterwards
        (done,) = await thread.run(job, [work], [slice_ms])
        end, slice_ms = done.result
        if end is not None:
            return end.value


async def _run_whole(thread: _Thread, caller: str, function: Callable[[], T]) -> T:
    result: Future[T] = Future()

    def whole() -> InSlices[None]:
        try:
            result.set_result(function())
        except BaseException as error:  # raised by `result`
            result.set_exception(error)
        yield

    await _run(thread, caller, whole(), _WHOLE_MS, _WHOLE_MS)
    return result.result()


def _thread(name: str, age_factor: float) -> _Thread:
    model_stage = ModelStage(Stage.THREAD, name)
    return ThreadStage(model_stage, _run_slices, Throughput(age_factor), max_batch_tokens=1, observers=Observers())


def _run_slices(batch: Sequence[InSlices[Any]]) -> list[_Slice]:
    return [_run_slice(work) for work in batch]


def _run_slice(work: InSlices[Any]) -> _Slice:
    start_s, end = time.perf_counter(), None
    try:
        while time.perf_counter() < start_s + _SLICE_MS / 1000:
            next(work)
    except StopIteration as stop:
        end = stop
    return end, max(1, round((time.perf_counter() - start_s) * 1000))
