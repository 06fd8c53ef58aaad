"""The settings of relevance by cosines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rerank.config.settings import Settings


class RelevanceCurve(Settings):
    """The relevance of a passage by the cosine of its vector with the query's vector (Platt 1999).

    It is 1 / (1 + exp(-(intercept + slope * cosine))).

    `python -m scripts.reproduce.relevance` fits it to judged lists.

    Attributes:
        intercept: the log-odds at the cosine 0.
        slope: increase of the log-odds from the cosine 0 to the cosine 1; above 0.
    """

    intercept: float
    slope: Annotated[float, Field(gt=0)]


#: The curve of the default encoder, fitted on halves of TREC DL 2021 (SPLADE++) and pydoc (hybrid-rrf), on the passages
#: whose cosine the default model read (`eval-relevance default --rel 2 --fit` at commit ba51312).
DEFAULT_RELEVANCE = RelevanceCurve(intercept=-6.24, slope=8.43)
