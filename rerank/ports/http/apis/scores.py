"""The scores of HTTP reranking APIs, which are between 0 and 1, made from the scores of a ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rerank.engine.scores import strictly_decreasing
from rerank.types import Completeness, Ranking, ScoreKind

#: The raw score of a result that no model ranked, in place of minus infinity, the log-odds of 0.
_UNRANKED_RAW = -700.0


class Scored(NamedTuple):
    """A result.

    Attributes:
        position: position of the document in the request, from 0.
        score: between 0 and 1, or the score of the ranking.
        ranked: False for a result that has neither a score by the model nor a relevance, otherwise None. A score made
            from its position would look like certainty to a client with a threshold.
    """

    position: int
    score: float
    ranked: bool | None


def scored(
    ranking: Ranking, candidates: int, is_relative: bool | None = False, is_raw: bool | None = False
) -> list[Scored]:
    """Returns the results, best first, with scores between 0 and 1; with `is_raw`, with the ranking's scores.

    `ranked` is False in an answer that replaces a failure, and if the model kept the order of the first stage.

    Args:
        ranking: the ranking; it may hold the first results only.
        candidates: the number of candidates of the request.
        is_relative: see `relevance_scores`.
        is_raw: whether the results have the scores that gRPC returns.
    """
    is_unscored, results = _has_no_scores(ranking), list[Scored]()
    scores = None if is_raw else relevance_scores(ranking, candidates, is_relative)
    for index, item in enumerate(ranking.ranked):
        ranked = False if is_unscored and item.relevance is None else None
        raw = item.score if ranked is None else _UNRANKED_RAW
        results.append(Scored(item.position, raw if scores is None else scores[index], ranked))
    return results


def _has_no_scores(ranking: Ranking) -> bool:
    is_unranked = ranking.trace.failure is not None or ranking.trace.completeness is Completeness.NONE
    return is_unranked and ranking.score_kind is ScoreKind.RANK


def isotonic(values: Sequence[float]) -> list[float]:
    """Returns the non-increasing sequence nearest to `values` in least squares (pool adjacent violators, Ayer 1955)."""
    blocks: list[tuple[float, int]] = []  # mean and number of values
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (last, m), (before, n) = blocks.pop(), blocks.pop()
            blocks.append(((last * m + before * n) / (m + n), m + n))
    return [mean for mean, n in blocks for _ in range(n)]


def _isotonic_with_unknown(relevances: Sequence[float | None]) -> list[float]:
    """Returns the result of `isotonic`, where None gets the next known value, or 0 if there is none."""
    known = isotonic([relevance for relevance in relevances if relevance is not None])
    filled, following = list[float](), 0.0
    for relevance in reversed(relevances):
        following = following if relevance is None else known.pop()
        filled.append(following)
    return filled[::-1]


def relevance_scores(ranking: Ranking, candidates: int, is_relative: bool | None = False) -> list[float]:
    """Returns one score in [0, 1] per result, in the order of the results.

    The scores fall along the results, because clients sort by them.

    If the model gives a relevance, the score is the relevance: a probability that can be compared between requests. The
    order comes from more signals, so the relevance may rise along it. Results where it rises get their mean. A
    passage of unknown relevance has the score of the next passage whose relevance is known, or 0.

    If the model gives no relevance, or if `is_relative`, the scores order the results of one request:

    - Log-probabilities (one window held all candidates) become exp(score), which is the softmax over the window.
    - Probabilities of a model that scores each passage alone stay as they are. Its other scores are logits and become
      1 / (1 + exp(-score)). Only these two can be compared between requests.
    - Scores of a listwise model, which with a weight of the first stage are sums of z-scores over the window, become
      1 / (1 + exp(-score)).
    - Ranks (several windows, or a model without scores) become (candidates - rank) / candidates, with ranks from 0.

    Results that no model ranked (see `scored`) have 0, which every client can read and no threshold lets through.

    Args:
        ranking: the ranking; it may hold the first results only.
        candidates: the number of candidates of the request.
        is_relative: whether the scores come from the scores of the ranking even if the results have a relevance.
    """
    relevances = [item.relevance for item in ranking.ranked]
    if _has_no_scores(ranking):
        return [relevance or 0.0 for relevance in relevances]
    if not is_relative and relevances.count(None) < len(relevances):
        return [max(0.0, value) for value in strictly_decreasing(_isotonic_with_unknown(relevances))]
    scores = [item.score for item in ranking.ranked]
    match ranking.score_kind:
        case ScoreKind.WINDOW_LOG_PROB:
            excess = max(0.0, *scores, 0.0)  # rounding, as log-probabilities are at most 0
            return [math.exp(score - excess) for score in scores]
        case ScoreKind.POINTWISE_PROBABILITY:
            return [min(1.0, max(0.0, score)) for score in scores]  # `strictly_decreasing` lowered equal scores
        case ScoreKind.POINTWISE | ScoreKind.WINDOW_SCORE:
            return [1 / (1 + math.exp(-max(score, -700.0))) for score in scores]
        case _:
            return [score / candidates for score in scores]
