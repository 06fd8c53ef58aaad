"""Scores of a ranking: interpolated with those of the first stage, and lowered where they are tied.

Interpolation is a sum of z-scores over a window: z(ranker) + w · z(first stage).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from rerank.retrieval.hybrid import RRF_K, z_scores
from rerank.types import Candidate, InterpolatedScores, WindowRanking

#: Scores of the first stage, or in its place, and their source.
FirstStageScores: TypeAlias = tuple[Sequence[float], InterpolatedScores]


def interpolate(ranking: WindowRanking, first_stage: Sequence[float], weight: float) -> WindowRanking:
    """Ranks the same window by z(scores) + weight · z(first_stage)."""
    scores = z_scores(ranking.scores) + weight * z_scores(first_stage)
    return replace(ranking, scores=tuple(scores.tolist()))


def candidate_scores(candidates: Sequence[Candidate]) -> FirstStageScores:
    """Returns the first stage's scores of candidates in its order; reciprocal ranks if one has no finite score.

    Of a hybrid first stage the BM25 scores, because the rankers' scores hold the similarity of the vectors already.
    """
    bm25 = [candidate.bm25_score for candidate in candidates if candidate.bm25_score is not None]
    if len(bm25) == len(candidates):
        return bm25, InterpolatedScores.BM25
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if len(scores) == len(candidates) and all(map(math.isfinite, scores)):
        return scores, InterpolatedScores.FIRST_STAGE
    return reciprocal_ranks(len(candidates))


def reciprocal_ranks(n: int) -> FirstStageScores:
    """1 / (60 + rank) for the ranks 1 to n."""
    return [1.0 / (RRF_K + rank) for rank in range(1, n + 1)], InterpolatedScores.RECIPROCAL_RANK


def strictly_decreasing(scores: Sequence[float]) -> list[float]:
    """Lowers each score that is not below its predecessor in float32 to the next smaller float32.

    trec_eval reads scores as float32, sorts by them and ignores the rank column, so tied scores would lose the order.
    """
    result: list[float] = []
    for score in scores:
        if result and not np.float32(score) < np.float32(result[-1]):
            score = float(np.nextafter(np.float32(result[-1]), np.float32(-np.inf)))
        result.append(score)
    return result
