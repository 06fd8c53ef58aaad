"""Relevance is the probability that a passage answers the query, as a function of one signal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Signal: TypeAlias = Literal["cosine", "sparse", "score"]


class RelevanceCurve(BaseModel):
    """A logistic function of a signal (Platt 1999): 1 / (1 + exp(-(intercept + slope · signal))).

    A signal is a number that depends on the query and the passage alone, so it means the same in every request.

    Attributes:
        signal: `cosine`: of the encoder's vectors. `sparse`: the dot product of the passage's learned sparse vector
            with that of the query, scaled to unit length. `score`: the score of a model that reads each passage alone,
            or the log-odds of its probability. Default: `score`.
        intercept: the log-odds of a passage whose signal is 0.
        slope: change of the log-odds with the signal, 0 or more.
        encoder_sha256: SHA-256 of the weights of the encoder, or sparse encoder, that gives the signal. Default: empty,
            for `score`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    signal: Signal = "score"
    intercept: float
    slope: Annotated[float, Field(ge=0)]
    encoder_sha256: str = ""

    def probability(self, value: float) -> float:
        """Returns the relevance of a passage with this value of the signal."""
        return 1 / (1 + math.exp(-min(700.0, max(-700.0, self.intercept + self.slope * value))))


#: The curves of a model. A passage gets its relevance from the first one whose signal is known of it.
RelevanceCurves: TypeAlias = tuple[RelevanceCurve, ...]

#: The relevance by a model whose score is the log-odds already.
OWN_LOG_ODDS: RelevanceCurves = (RelevanceCurve(intercept=0.0, slope=1.0),)


def relevance(curves: RelevanceCurves, signals: Mapping[str, float]) -> float | None:
    """Returns the relevance of a passage by the first curve whose signal is known of it, or None if none is."""
    return next((curve.probability(signals[curve.signal]) for curve in curves if curve.signal in signals), None)


def log_odds(probability: float) -> float:
    """ln(p / (1 - p)), at most 700 from 0."""
    if not 0 < probability < 1:
        return 700.0 if probability >= 1 else -700.0
    return math.log(probability) - math.log1p(-probability)
