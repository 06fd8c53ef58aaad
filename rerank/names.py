"""Names that are the same on every port: strategies, first stages, feedback methods and health checks."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Self, TypeAlias

from rerank.errors import InvalidRequest

#: The full name of the gRPC service. A health check of it has the status of the default model.
SERVICE = "rerank.v1.RerankService"
#: A health check of this name says whether the process answers at all, also during a drain.
LIVENESS = "liveness"


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
    CASCADE = "cascade"


class FirstStageKind(Name):
    """The kinds of first stages, by which a model weights their scores."""

    #: Unknown: a fusion derives the weight of the scores from each list.
    AUTO = "auto"
    #: A strong dense, learned sparse or late-interaction model.
    NEURAL = "neural"


#: The weight of the first stage's z-scores, or the kind of the first stage.
FirstStageWeight: TypeAlias = FirstStageKind | float
MAX_FIRST_STAGE_WEIGHT = 100.0


def first_stage_weight(given: object) -> FirstStageWeight:
    """Reads a weight: a number, also as text, or the name of a kind. Raises: InvalidRequest."""
    try:
        weight = float(str(given))
    except ValueError:
        return FirstStageKind.of("first_stage_weight", given)
    if not 0 <= weight <= MAX_FIRST_STAGE_WEIGHT:  # also true for nan
        raise InvalidRequest(
            "first_stage_weight",
            f"{weight:g} is not between 0 and {MAX_FIRST_STAGE_WEIGHT:g}; use a number in this range, or one of "
            f"{', '.join(FirstStageKind)}",
            {"value": str(weight), "limit": f"0 to {MAX_FIRST_STAGE_WEIGHT:g}"},
        )
    return weight


class FirstStage(Name):
    """The first-stage retrievers that an index offers."""

    BM25 = "bm25"
    DENSE = "dense"
    #: BM25 and dense, by reciprocal ranks and by z-scores.
    HYBRID_RRF = "hybrid-rrf"
    HYBRID_Z_SCORE = "hybrid-z-score"

    @property
    def reads_vectors(self) -> bool:
        """True if it reads the query's vector, which relevance feedback can update."""
        return self is not FirstStage.BM25


#: The first stage with the best mean over the collections of docs/evidence/results.md.
DEFAULT_FIRST_STAGE = FirstStage.HYBRID_Z_SCORE


class FeedbackMethod(Name):
    """Methods by which relevance feedback updates the query vector; see `rerank.retrieval.feedback`."""

    #: Adam on RankNet with pairs weighted by 1 / (rank_i + rank_j): uses the teacher's order only.
    WEIGHTED_RANKNET = "weighted-ranknet"
    #: Adam on the KL divergence of softmax(scores) from softmax(teacher): uses the teacher's scores.
    KL = "kl"
    #: One step towards the mean of the first passages and away from the mean of the others.
    ROCCHIO = "rocchio"
    #: The vector that a model of ranker e2rank made of the query and the first passages; no step.
    E2RANK = "e2rank"
    #: weighted-ranknet with the scaling of FIRST's code.
    WEIGHTED_RANKNET_FIRST = "weighted-ranknet-first"
    #: As in FIRST: KL with the scores of a cascade's preranker, then weighted-ranknet-first with the final order.
    CHAIN = "chain"

    @property
    def is_a_loss(self) -> bool:
        """True if the update minimises a loss; it is then discarded if it does not lower the loss."""
        return self is not FeedbackMethod.ROCCHIO


class OnFailure(Name):
    """The answer to a request if the service fails, see `rerank.errors`."""

    ERROR = "error"
    #: The best order so far, or the first stage's; the trace names the failure.
    FIRST_STAGE = "first-stage"


#: Class → the word for its members in messages.
_KINDS = {
    "StrategyKind": "strategy",
    "FirstStage": "first stage",
    "FirstStageKind": "kind of first stage",
    "FeedbackMethod": "feedback method",
    "OnFailure": "choice",
}

#: A longer word is not a misspelt name, and comparing it would take time.
_MAX_COMPARED_CHARS = 100


def did_you_mean(given: str, choices: Iterable[str]) -> str:
    """ " did you mean NAME?" for the choice that is most like the given word; empty if none is."""
    close = get_close_matches(given[:_MAX_COMPARED_CHARS].lower(), [*map(str, choices)], n=1, cutoff=0.7)
    return f" did you mean {close[0]}?" if close else ""
