"""Hybrid retrieval: fusion of the results of BM25 and dense search by reciprocal rank or by z-scores."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rerank.retrieval.store import ScoredRow
from rerank.types import Query

#: Key of a passage: its row in the index, or its doc_id.
K = TypeVar("K", bound=Hashable)

#: The constant k of reciprocal rank fusion (Cormack et al., SIGIR 2009, section 2).
RRF_K = 60


class Retriever(Protocol):
    """A first-stage retriever, which finds candidates for queries."""

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredRow]]:
        """The best passages of each query, best first: `depth` of them, or fewer if the retriever finds no more."""
        ...


class Fusion(Protocol):
    """Fuses the runs of several retrievers for one query. A run is passage → score, in falling order of the scores."""

    def __call__(self, runs: Sequence[Mapping[K, float]]) -> dict[K, float]: ...


@dataclass(frozen=True, slots=True)
class HybridRetriever:
    """Retrieves with BM25 and with dense search to the same depth, and fuses their results."""

    bm25: Retriever
    dense: Retriever
    fusion: Fusion

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredRow]]:
        results = [retriever.search(queries, depth) for retriever in (self.bm25, self.dense)]
        runs = [[{hit.row: hit.score for hit in hits} for hits in result] for result in results]
        fused = (best(self.fusion(of_query), depth) for of_query in zip(*runs, strict=True))
        return [[ScoredRow(row, score) for row, score in of_query.items()] for of_query in fused]


def reciprocal_rank(runs: Sequence[Mapping[K, float]]) -> dict[K, float]:
    """Reciprocal rank fusion: score(d) = Σ over runs of 1 / (60 + rank of d), rank 1 for the first.

    A run without d contributes nothing.
    """
    fused: dict[K, float] = {}
    for run in runs:
        for rank, passage in enumerate(run, start=1):
            fused[passage] = fused.get(passage, 0.0) + 1.0 / (RRF_K + rank)
    return fused


def z_score_sum(runs: Sequence[Mapping[K, float]], weights: Sequence[float]) -> dict[K, float]:
    """Weighted sum of z-scores: score(d) = Σ over runs of wᵢ · (scoreᵢ(d) - meanᵢ) / standard deviationᵢ.

    A run without d contributes its lowest z-score.
    """
    fused: dict[K, float] = {passage: 0.0 for run in runs for passage in run}
    for weight, run in zip(weights, runs, strict=True):
        z = dict(zip(run, z_scores(list(run.values())).tolist(), strict=True))
        lowest = min(z.values(), default=0.0)
        for passage in fused:
            fused[passage] += weight * z.get(passage, lowest)
    return fused


def best(scores: Mapping[K, float], depth: int) -> dict[K, float]:
    """The `depth` highest scores, best first; equal scores keep the order of `scores`."""
    return dict(sorted(scores.items(), key=lambda item: -item[1])[:depth])


def z_scores(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """(n,) finite scores minus their mean, divided by their population standard deviation; zeros if all are equal."""
    values = np.asarray(scores, dtype=np.float64)
    if not values.size or values.min() == values.max():
        return np.zeros(len(values))
    values = values / np.abs(values).max()  # so that the squares of large scores are finite
    deviation = values.std()
    return (values - values.mean()) / deviation if deviation > 0 else np.zeros(len(values))
