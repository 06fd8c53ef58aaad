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
class InterpolationReport:
    """The interpolation of a ranking with its first stage, which has weight `first_stage`.

    Attributes:
        scores: what stood for the first stage; None if the interpolation was not applied.
        reason: why it was not applied; otherwise empty.
    """

    first_stage: float
    scores: InterpolatedScores | None = None
    reason: str = ""
