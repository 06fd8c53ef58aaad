"""Relevance: the probability that a passage answers the query, as a function of evidence from a ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field


class RelevanceCurve(BaseModel):
    """A logistic function of evidence (Platt 1999): σ(intercept + slope · evidence + log_place · ln(1 + place)).

    Evidence is a number that means the same in every request: the encoder's cosine of query and passage, or the score
    of a model that reads each passage alone.

    Attributes:
        intercept: the log-odds of the first passage of a list, without evidence.
        slope: change of the log-odds with the evidence.
        log_place: change of the log-odds with the logarithm of the place in the final order (0, 1, …).
        encoder_sha256: SHA-256 of the weights of the encoder whose cosine is the evidence. Default: empty, the evidence
            is the model's own score.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    intercept: float
    slope: Annotated[float, Field(ge=0)]
    log_place: Annotated[float, Field(le=0)] = 0.0
    encoder_sha256: str = ""

    def relevances(self, evidence: Sequence[float]) -> list[float]:
        """The relevance of each passage of a list, given the evidence in the final order; it never increases.

        Where the order and the evidence disagree, the passages between share their mean (isotonic regression by pool
        adjacent violators). So the expected number of relevant passages in the list stays as the curve says it; a
        running minimum would lower it whenever one passage stands too high.
        """
        from sklearn.isotonic import isotonic_regression  # takes a second, for which no command should wait

        if not evidence:
            return []
        log_odds = self.intercept + self.slope * np.asarray(evidence) + self.log_place * np.log1p(range(len(evidence)))
        probabilities = 1 / (1 + np.exp(-np.clip(log_odds, -700, 700)))
        return list(map(float, isotonic_regression(probabilities, y_min=0, y_max=1, increasing=False)))


#: The relevance by a model whose score is the log-odds already.
OWN_LOG_ODDS = RelevanceCurve(intercept=0.0, slope=1.0)


def log_odds(probability: float) -> float:
    """ln(p / (1 - p)), at most 700 from 0."""
    if not 0 < probability < 1:
        return 700.0 if probability >= 1 else -700.0
    return math.log(probability) - math.log1p(-probability)
