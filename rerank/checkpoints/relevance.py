"""Relevance is the probability that a passage answers the query, as a function of its signals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Signal: TypeAlias = Literal["cosine", "sparse", "score"]


class RelevanceCurve(BaseModel):
    """A logistic function of signals (Platt 1999): 1 / (1 + exp(-(intercept + the sum of slope · signal))).

    A signal is a number that depends on the query and the passage alone, so it means the same in every request.

    Attributes:
        intercept: the log-odds of a passage whose signals are 0.
        slopes: signal → change of the log-odds with it, 0 or more. `cosine`: of the encoder's vectors. `sparse`: the
            dot product of the passage's learned sparse vector with that of the query, scaled to unit length. `score`:
            the score of a model that reads each passage alone, or the log-odds of its probability.
        encoders: signal → SHA-256 of the weights of the encoder, or sparse encoder, that gives it. Default: none, for
            `score`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    intercept: float
    slopes: Annotated[dict[Signal, Annotated[float, Field(ge=0)]], Field(min_length=1)]
    encoders: dict[Signal, str] = Field(default_factory=dict)

    def probability(self, signals: Mapping[str, float]) -> float:
        """Returns the relevance of a passage with these signals, which include those of the curve."""
        odds = self.intercept + sum(slope * signals[signal] for signal, slope in self.slopes.items())
        return 1 / (1 + math.exp(-min(700.0, max(-700.0, odds))))


#: The curves of a model. A passage gets its relevance from the first one whose signals are all known of it.
RelevanceCurves: TypeAlias = tuple[RelevanceCurve, ...]

#: The relevance by a model whose score is the log-odds already.
OWN_LOG_ODDS: RelevanceCurves = (RelevanceCurve(intercept=0.0, slopes={"score": 1.0}),)


def relevance(curves: RelevanceCurves, signals: Mapping[str, float]) -> float | None:
    """Returns the relevance of a passage by the first curve whose signals are known of it, or None if none is."""
    return next((curve.probability(signals) for curve in curves if curve.slopes.keys() <= signals.keys()), None)


def log_odds(probability: float) -> float:
    """ln(p / (1 - p)), at most 700 from 0."""
    if not 0 < probability < 1:
        return 700.0 if probability >= 1 else -700.0
    return math.log(probability) - math.log1p(-probability)
