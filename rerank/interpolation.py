"""The report of an interpolation of a ranking with its first stage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class InterpolatedScores(Enum):
    """The scores that stood for the first stage in an interpolation."""

    #: The scores of the candidates.
    FIRST_STAGE = "first_stage"
    #: The BM25 scores within a hybrid first stage.
    BM25 = "bm25"
    #: 1 / (60 + rank), because the candidates or the preranker have no scores that can be compared.
    RECIPROCAL_RANK = "reciprocal_rank"
    #: The scores of a cascade's preranker.
    PRERANKER = "preranker"


@dataclass(frozen=True, slots=True)
class MeanCorrelation:
    """The mean correlation over a number of lists; 0 over none."""

    mean: float = 0.0
    lists: int = 0

    def with_lists_of(self, other: MeanCorrelation) -> MeanCorrelation:
        """The mean over the lists of both, at least one."""
        lists = self.lists + other.lists
        return MeanCorrelation((self.mean * self.lists + other.mean * other.lists) / lists, lists)


@dataclass(frozen=True, slots=True)
class InterpolationReport:
    """The interpolation of a ranking with its first stage, which has weight `first_stage`.

    Attributes:
        scores: what stood for the first stage; None if the interpolation was not applied.
        reason: why it was not applied; otherwise empty.
        correlation: of the first stage's scores with the other signals of a fusion; None: the model is no fusion, the
            candidates have no scores, or there are fewer than 10.
        of_caller: the mean of it over the caller's lists so far, see `rerank.first_stage_correlation`.
    """

    first_stage: float
    scores: InterpolatedScores | None = None
    reason: str = ""
    correlation: float | None = None
    of_caller: MeanCorrelation | None = None
