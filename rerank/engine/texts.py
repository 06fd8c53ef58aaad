"""Threads for work on the texts of requests that no model does, such as dividing long documents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from rerank.engine.admission import Throughput
from rerank.engine.request import ModelStage, RankRequest, Stage
from rerank.engine.stage import ThreadStage, now_s
from rerank.types import InSlices, Query

T = TypeVar("T")

#: How long a slice lasts, about, and the longest short work.
_SLICE_MS = 10
#: The end of a work, None after any other slice; and the milliseconds that the slice took, at least one.
_Slice: TypeAlias = tuple[StopIteration | None, int]
_TextStage: TypeAlias = ThreadStage[InSlices[Any], _Slice]


class TextThreads:
    """Runs work on texts: short work on one thread, long work on another, so that short work never waits for long work.

    On each thread callers take turns after each slice, as they do for the thread of a model. Their shares are counted
    in milliseconds. So long documents of one caller do not delay the others, and two such threads at most hold the
    interpreter.

    Args:
        age_factor: see Throughput.
    """

    def __init__(self, age_factor: float) -> None:
        self._short, self._long = _stage("short", age_factor), _stage("long", age_factor)

    def open(self) -> None:
        self._short.open()
        self._long.open()

    async def close(self) -> None:
        """Lets the running slices finish; further work fails with ShuttingDown."""
        await self._short.close()
        await self._long.close()

    async def run(self, caller: str, work: InSlices[T], expected_ms: float) -> T:
        """The result of the work. If it is cancelled, no further slice runs.

        Args:
            caller: callers have equal shares of a thread.
            expected_ms: how long the work takes, about. Of the long work, the shortest goes first.

        Raises: ShuttingDown; RerankError, as the work raises it; RankerFailure in the place of any other exception.
        """
        stage = self._short if expected_ms <= _SLICE_MS else self._long
        turns = RankRequest(Query(""), (), (), caller=caller, arrived_s=now_s())
        turns.remaining[stage.model_stage] = 1 + expected_ms
        slice_ms = 1
        while True:  # a slice counts as long as the one before, because its own time is known only afterwards
            (done,) = await stage.run(turns, [work], [slice_ms])
            end, slice_ms = done.result
            if end is not None:
                return end.value


def _stage(name: str, age_factor: float) -> _TextStage:
    return ThreadStage(ModelStage(Stage.TEXT, name), _run_slices, Throughput(age_factor), max_batch_tokens=1)


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
