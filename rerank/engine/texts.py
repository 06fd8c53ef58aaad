"""The thread for work on the texts of requests that no model does, such as dividing long documents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from rerank.engine.admission import Throughput
from rerank.engine.request import ModelStage, RankRequest, Stage
from rerank.engine.stage import ThreadStage, now_s
from rerank.types import InSlices, Query

T = TypeVar("T")

#: How long a slice lasts, about.
_SLICE_S = 0.01
#: Characters that are divided in a millisecond, about: the estimate of the work that remains.
_CHARS_PER_MS = 800
#: The end of a work, None after any other slice; and the milliseconds that the slice took, at least one.
_Slice: TypeAlias = tuple[StopIteration | None, int]


class TextThread:
    """Runs work on texts, on one thread. Callers take turns after each slice, as they do for the thread of a model.

    So long documents of one caller do not delay the others, and the interpreter is held by one such thread at most. A
    caller's share is counted in milliseconds, where that of a model's thread is counted in tokens.

    Args:
        age_factor: see Throughput.
    """

    def __init__(self, age_factor: float) -> None:
        self._model_stage = ModelStage(Stage.TEXT, "work")
        self._stage: ThreadStage[InSlices[Any], _Slice] = ThreadStage(
            self._model_stage, _run_slices, Throughput(age_factor), max_batch_tokens=1
        )

    def open(self) -> None:
        self._stage.open()

    async def close(self) -> None:
        """Lets the running slice finish; further work fails with ShuttingDown."""
        await self._stage.close()

    async def run(self, caller: str, work: InSlices[T], chars: int) -> T:
        """The result of the work. If it is cancelled, no further slice runs.

        Args:
            caller: callers have equal shares of the thread.
            chars: how many characters the work reads, about. Short work goes first.

        Raises: ShuttingDown; RerankError, as the work raises it; RankerFailure in the place of any other exception.
        """
        turns = RankRequest(Query(""), (), (), caller=caller, arrived_s=now_s())
        turns.remaining[self._model_stage] = 1 + chars / _CHARS_PER_MS
        slice_ms = 1
        while True:  # each slice counts as long as the one before, because its own time is known only afterwards
            (done,) = await self._stage.run(turns, [work], [slice_ms])
            end, slice_ms = done.result
            if end is not None:
                return end.value


def _run_slices(batch: Sequence[InSlices[Any]]) -> list[_Slice]:
    return [_run_slice(work) for work in batch]


def _run_slice(work: InSlices[Any]) -> _Slice:
    start_s, end = time.perf_counter(), None
    try:
        while time.perf_counter() < start_s + _SLICE_S:
            next(work)
    except StopIteration as stop:
        end = stop
    return end, max(1, round((time.perf_counter() - start_s) * 1000))
