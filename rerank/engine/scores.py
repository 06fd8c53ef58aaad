"""Adds the scores of the first stage and of BM25 to a ranking, and breaks ties."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from rerank.errors import RankerFailure
from rerank.retrieval.hybrid import RRF_K, z_scores
from rerank.types import Passage, Window, WindowRanking


def with_signals(ranking: WindowRanking, window: Window) -> WindowRanking:
    """A ranking with the scores z(scores) + weight · z(first stage) + lexical, where z is over the window."""
    weight = window.weight
    if not isinstance(weight, float):
        raise RankerFailure(f"the weight {weight} reached a model that cannot read it; this is a bug")
    scores = z_scores(ranking.scores)
    if weight:
        scores += weight * z_scores(window.first_stage)
    if ranking.lexical:
        scores += np.array(ranking.lexical)
    return replace(ranking, scores=tuple(scores.tolist()), weight=weight)


def first_stage_scores(given: Sequence[float | None]) -> Sequence[float]:
    """The first stage's scores of an ordered list, changed so that higher is better.

    Distances, see `are_distances`, are negated. If a score is missing or not finite, or all are equal (as from clients
    that must send a score), the result is reciprocal ranks.
    """
    scores = [score for score in given if score is not None]
    if len(scores) < len(given) or not all(map(math.isfinite, scores)) or len({*scores}) < 2:
        return reciprocal_ranks(len(given))
    return [-score for score in scores] if are_distances(scores) else scores


def are_distances(scores: Sequence[float]) -> bool:
    """True if the scores of a list, best first, never fall and are not all equal, so that lower scores are better."""
    return len({*scores}) > 1 and all(score <= following for score, following in pairwise(scores))


def warning_of_distances(candidates: Sequence[Passage]) -> str:
    """The warning that the scores of an ordered list are read as distances; empty if they are not."""
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if len(scores) < len(candidates) or not all(map(math.isfinite, scores)) or not are_distances(scores):
        return ""
    return "the first-stage scores rise along the list, so they are read as distances: lower ones are better"


def warning_of_lost_scores(candidates: Sequence[Passage]) -> str:
    """The warning that the first stage's scores do not count because some are missing; empty if they count."""
    given = [candidate.score for candidate in candidates if candidate.score is not None]
    finite = sum(map(math.isfinite, given))
    if not given or finite == len(candidates):
        return ""
    without = f"{len(candidates) - finite} of {len(candidates)} candidates have no finite first-stage score"
    return f"{without}, so the scores of the others do not count"


def reciprocal_ranks(n: int) -> Sequence[float]:
    """1 / (60 + rank) for the ranks 1 to n."""
    return [1.0 / (RRF_K + rank) for rank in range(1, n + 1)]


def kendall_tau(order: Sequence[int]) -> float | None:
    """Kendall's tau, -1 to 1, between an order of the ranks 0 to n - 1 and the sorted ranks; None for one rank.

    scipy's function takes 4 ms for 100 ranks, a fifth of a warm request.
    """
    if len(order) < 2:
        return None
    seen: list[int] = []
    discordant = 0
    for rank in order:
        index = bisect(seen, rank)
        discordant += len(seen) - index
        seen.insert(index, rank)
    return 1 - 4 * discordant / (len(order) * (len(order) - 1))


def strictly_decreasing(scores: Sequence[float]) -> list[float]:
    """The scores in a strictly falling order: one that does not fall in float32 is lowered to the next smaller float32.

    trec_eval reads scores as float32, sorts by them and ignores the rank column, so that ties would lose the order.
    """
    result: list[float] = []
    for score in scores:
        if result and not np.float32(score) < np.float32(result[-1]):
            score = float(np.nextafter(np.float32(result[-1]), np.float32(-np.inf)))
        result.append(score)
    return result
