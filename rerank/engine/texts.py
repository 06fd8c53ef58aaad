"""The thread for work on the texts of requests that no model does, such as dividing long documents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from rerank.engine.admission import Throughput
from rerank.engine.request import ModelStage, RankRequest, Stage
from rerank.engine.stage import ThreadStage, now_s
from rerank.types import InSlices, Query

T = TypeVar("T")

#: How long a slice lasts, about.
_SLICE_S = 0.01
#: Characters in a slice, about: the estimate of the work that remains.
_SLICE_CHARS = 8192


class TextThread:
    """Runs work on texts, on one thread. Callers take turns after each slice, as they do for the thread of a model.

    So long documents of one caller do not delay the others, and the interpreter is held by one such thread at most.

    Args:
        age_factor: see Throughput.
    """

    def __init__(self, age_factor: float) -> None:
        self._model_stage = ModelStage(Stage.TEXT, "work")
        self._stage: ThreadStage[InSlices[Any], StopIteration | None] = ThreadStage(
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
        turns.remaining[self._model_stage] = 1 + chars / _SLICE_CHARS
        while True:
            (done,) = await self._stage.run(turns, [work], [1])
            if done.result is not None:
                return done.result.value


def _run_slices(batch: Sequence[InSlices[Any]]) -> list[StopIteration | None]:
    return [_run_slice(work) for work in batch]


def _run_slice(work: InSlices[Any]) -> StopIteration | None:
    """The end of the work, with its result; None if it has not ended yet."""
    end_s = time.perf_counter() + _SLICE_S
    try:
        while time.perf_counter() < end_s:
            next(work)
    except StopIteration as end:
        return end
    return None
