"""Scores between 0 and 1, which clients of HTTP reranking APIs expect, made from the scores of a ranking."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

from pydantic import Field

from rerank.types import Completeness, Ranking, ScoreKind

#: Mark of a result that has its place, but no score, see `unranked`.
Ranked: TypeAlias = Annotated[
    bool | None,
    Field(
        description="false: no model ranked the results to the end. This one has its place in the first stage, or in "
        "the best order so far, and its score says nothing. Absent otherwise."
    ),
]
#: The raw score of such a result: the log-odds of 0.
UNRANKED_RAW = -700.0


def unranked(ranking: Ranking) -> list[bool | None]:
    """For each result, False if it has neither a score of the ranking nor a relevance; else None.

    It is so in an answer in the place of a failure, and where the model kept the order of the first stage. A number
    from 0 to 1 that is made from the place would look like certainty to a client with a threshold.
    """
    return [False if _is_unranked(ranking) and item.relevance is None else None for item in ranking.ranked]


def _is_unranked(ranking: Ranking) -> bool:
    nothing = ranking.trace.failure is not None or ranking.trace.completeness is Completeness.NONE
    return nothing and ranking.score_kind is ScoreKind.RANK


def relevance_scores(ranking: Ranking, candidates: int, is_relative: bool | None = False) -> list[float]:
    """One score in [0, 1] per result, in the order of the results.

    Results that are `unranked` have 0, which every client can read and no threshold lets through. The others beside
    them have their relevance.

    Otherwise it is the relevance, a probability that can be compared between requests, if the model gives it. It
    depends on the query and the passage alone, so it may be larger than that of the result before. The scores are
    others, and never rise, if the model gives none, or did not read a passage, or if relative scores are asked for:

    - Log-probabilities (one window held all candidates) become probabilities, exp(score): the softmax over the window.
    - Interpolated scores (sums of z-scores over that window) become 1 / (1 + exp(-score)): 0.5 is the window's mean.
    - Probabilities of a model that scores each passage alone stay as they are, and its other scores, which are logits,
      become 1 / (1 + exp(-score)): a threshold on them holds for all requests.
    - Scores of a listwise model behind a rerank API become 1 / (1 + exp(-score)), too.
    - Ranks (several windows, or a model without scores) become (candidates - rank) / candidates, rank from 0.

    They order the results of one request. Other scores than the pointwise ones cannot be compared between requests.

    Args:
        ranking: the ranking; it may hold the first results only.
        candidates: the number of candidates of the request.
        is_relative: make them from the scores of the ranking, also where results have a relevance.
    """
    relevances = [item.relevance for item in ranking.ranked if item.relevance is not None]
    if _is_unranked(ranking):
        return [item.relevance or 0.0 for item in ranking.ranked]
    if not is_relative and len(relevances) == len(ranking.ranked):
        return relevances
    scores = [item.score for item in ranking.ranked]
    match ranking.score_kind:
        case ScoreKind.WINDOW_LOG_PROB:
            excess = max(0.0, *scores, 0.0)  # rounding, as log-probabilities are at most 0
            return [math.exp(score - excess) for score in scores]
        case ScoreKind.POINTWISE_PROBABILITY:
            return [min(1.0, max(0.0, score)) for score in scores]  # equal ones were lowered by a rounding error
        case ScoreKind.INTERPOLATED | ScoreKind.POINTWISE | ScoreKind.WINDOW_SCORE:
            return [1 / (1 + math.exp(-max(score, -700.0))) for score in scores]
        case _:
            return [score / candidates for score in scores]
