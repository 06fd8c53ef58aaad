"""The seam between scheduling and models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rerank.errors import RankerFailure
from rerank.types import Batching, Passage, Prepared, Query, ScoreKind, Window, WindowRanking


@dataclass(frozen=True, slots=True)
class RankerInfo:
    """What a reply says about the ranker."""

    kind: str
    model_id: str
    #: SHA-256 of the weights; empty where there are none.
    model_revision: str
    #: SHA-256 of the prompt template; empty where there is none.
    template_sha256: str
    #: The widest window that the ranker can read, in passages.
    max_window_size: int
    #: What its scores mean inside a window.
    score_kind: ScoreKind
    #: False for a ranker that keeps the order without reading the passages.
    reads_passages: bool = True
    #: How windows of a batch share a forward pass.
    batching: Batching = "one_by_one"
    #: Whether batches run on a device whose saturation is to be measured.
    on_accelerator: bool = False


class Ranker(Protocol):
    """Orders windows. `prepare`, `tokens` and `rank` come from a thread each, at the same time."""

    info: RankerInfo

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Computes once a request what `rank` needs of the query and of each passage.

        Raises:
            InvalidRequest: the query is longer than the model can read.
        """
        ...

    def tokens(self, window: Window) -> int:
        """How many positions the model will read for this window."""
        ...

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        """One ranking per window, in the same order, each with one finite score per passage.

        Raises:
            MemoryError: the device's memory does not hold so many windows; the engine tries fewer at once.
        """
        ...


def checked(rankings: Sequence[WindowRanking], windows: Sequence[Window]) -> Sequence[WindowRanking]:
    """The rankings, if there is one per window with one finite score per passage.

    Raises:
        RankerFailure: otherwise.
    """
    expected = [len(window.passages) for window in windows]
    if [len(ranking.scores) for ranking in rankings] != expected:
        raise RankerFailure(f"ranker gave {[len(r.scores) for r in rankings]} scores for {expected}; this is a bug")
    if not all(math.isfinite(score) for ranking in rankings for score in ranking.scores):
        raise RankerFailure(f"ranker gave a score that is no number: {rankings}; this is a bug")
    return rankings
