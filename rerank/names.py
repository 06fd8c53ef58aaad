"""Names of strategies, first stages and feedback methods, the same in every door; and former names of models."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import Self

from rerank.errors import InvalidRequest

log = logging.getLogger(__name__)

#: Former names of models → their names of today. They are accepted, with a warning, until version 0.2.
RENAMED_MODELS = {"first": "default"}


def current_model_name(name: str, models: Container[str]) -> str:
    """The name of one of the models, which may be given by its former name; any other name is returned as it is."""
    renamed = RENAMED_MODELS.get(name, "")
    if name in models or renamed not in models:
        return name
    _warn_of_former_name(name, renamed)
    return renamed


@cache
def _warn_of_former_name(name: str, renamed: str) -> None:
    """Logs it once, not for each request."""
    log.warning("model %s is called %s now; use that name: the former one will name FIRST alone in 0.2", name, renamed)


class Name(StrEnum):
    """Names with hyphens; the same names with underscores are accepted."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        hyphenated = str(value).replace("_", "-")
        return next((member for member in cls if member.value == hyphenated), None)

    @classmethod
    def of(cls, field: str, value: object) -> Self:
        """The member of this name. Raises: InvalidRequest on `field`, which lists the names."""
        try:
            return cls(str(value))
        except ValueError as error:
            raise InvalidRequest(
                field,
                f"unknown {_KINDS[cls.__name__]} {str(value)!r};{did_you_mean(str(value), cls)} choices: "
                f"{', '.join(cls)}",
                {"value": str(value)},
            ) from error


class StrategyKind(Name):
    """The strategies that a request may name; `rerank.engine.strategies` implements them."""

    SINGLE = "single"
    SLIDING = "sliding"
    TOP_DOWN = "top-down"
    TOURNAMENT = "tournament"
    CASCADE = "cascade"


class FirstStage(Name):
    """The first-stage retrievers that an index offers."""

    BM25 = "bm25"
    DENSE = "dense"
    HYBRID_RRF = "hybrid-rrf"
    HYBRID_Z_SCORE = "hybrid-z-score"


class FeedbackMethod(Name):
    """The methods by which relevance feedback updates the query vector; see `rerank.retrieval.query_update`."""

    #: Adam on RankNet with pairs weighted by 1 / (rank_i + rank_j): uses the teacher's order only.
    WEIGHTED_RANKNET = "weighted-ranknet"
    #: Adam on the KL divergence of softmax(scores) from softmax(teacher): uses the teacher's scores.
    KL = "kl"
    #: One step towards the mean of the first passages and away from that of the others.
    ROCCHIO = "rocchio"


class OnFailure(Name):
    """The answer to a request in the place of a failure of the service, see `rerank.failures`."""

    ERROR = "error"
    #: The best order so far, or that of the first stage; the trace names the failure.
    FIRST_STAGE = "first-stage"


#: What the members of a class are called in messages.
_KINDS = {
    "StrategyKind": "strategy",
    "FirstStage": "first stage",
    "FeedbackMethod": "feedback method",
    "OnFailure": "choice",
}

#: A longer word is no misspelt name, and comparing it would take time.
_MAX_COMPARED_CHARS = 100


def did_you_mean(given: str, choices: Iterable[str]) -> str:
    """ " did you mean NAME?" for the choice that is most like the given word; empty if none is."""
    close = get_close_matches(given[:_MAX_COMPARED_CHARS].lower(), [*map(str, choices)], n=1, cutoff=0.7)
    return f" did you mean {close[0]}?" if close else ""
