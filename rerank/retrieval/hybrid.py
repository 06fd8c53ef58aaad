"""Hybrid retrieval: fusion of BM25 and dense results by reciprocal rank or by z-scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rerank.retrieval.base import Retriever
from rerank.types import Query, ScoredDoc

#: Ranked lists of several retrievers for one query → fused score by doc_id.
Fusion: TypeAlias = Callable[[Sequence[Sequence[ScoredDoc]]], dict[str, float]]

#: The constant k of reciprocal rank fusion (Cormack et al., SIGIR 2009, section 2).
RRF_K = 60
#: Weights of BM25 and of dense retrieval in the sum of z-scores.
_Z_WEIGHTS = (0.3, 1.0)


class HybridRetriever:
    """Retrieves with BM25 and with the dense retriever to the same depth, and fuses both results.

    Each result also has its BM25 score: the lowest one of the list if only the dense retriever found it.
    """

    def __init__(self, bm25: Retriever, dense: Retriever, fusion: Fusion) -> None:
        self._retrievers = (bm25, dense)
        self._fusion = fusion

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredDoc]]:
        results = [retriever.search(queries, depth) for retriever in self._retrievers]
        return [_with_bm25_scores(best(self._fusion(runs), depth), runs[0]) for runs in zip(*results, strict=True)]


def reciprocal_rank(runs: Sequence[Sequence[ScoredDoc]]) -> dict[str, float]:
    """Reciprocal rank fusion: score(d) = Σ over runs of 1 / (60 + rank of d), rank 1 for the first.

    A run without d contributes nothing.
    """
    fused: dict[str, float] = {}
    for run in runs:
        for rank, doc in enumerate(run, start=1):
            fused[doc.doc_id] = fused.get(doc.doc_id, 0.0) + 1.0 / (RRF_K + rank)
    return fused


def z_score_sum(runs: Sequence[Sequence[ScoredDoc]], weights: Sequence[float] = _Z_WEIGHTS) -> dict[str, float]:
    """Weighted sum of z-scores: score(d) = Σ over runs of wᵢ · (scoreᵢ(d) - meanᵢ) / standard deviationᵢ.

    A run without d contributes its lowest z-score.
    """
    fused: dict[str, float] = {doc.doc_id: 0.0 for run in runs for doc in run}
    for weight, run in zip(weights, runs, strict=True):
        z = dict(zip((doc.doc_id for doc in run), z_scores([doc.score for doc in run]).tolist(), strict=True))
        lowest = min(z.values(), default=0.0)
        for doc_id in fused:
            fused[doc_id] += weight * z.get(doc_id, lowest)
    return fused


def best(scores: Mapping[str, float], depth: int) -> list[ScoredDoc]:
    """The `depth` documents with the highest scores; equal scores keep the order of `scores`."""
    ranked = sorted(scores.items(), key=lambda item: -item[1])[:depth]
    return [ScoredDoc(doc_id, score) for doc_id, score in ranked]


def z_scores(scores: Sequence[float]) -> npt.NDArray[np.float64]:
    """(n,) finite scores minus their mean, divided by their population standard deviation; zeros if all are equal."""
    values = np.asarray(scores, dtype=np.float64)
    if not values.size or values.min() == values.max():
        return np.zeros(len(values))
    values = values / np.abs(values).max()  # so that the squares of large scores are finite
    deviation = values.std()
    return (values - values.mean()) / deviation if deviation > 0 else np.zeros(len(values))


def _with_bm25_scores(fused: Sequence[ScoredDoc], bm25: Sequence[ScoredDoc]) -> list[ScoredDoc]:
    scores = {doc.doc_id: doc.score for doc in bm25}
    lowest = min(scores.values(), default=0.0)
    return [replace(doc, bm25_score=scores.get(doc.doc_id, lowest)) for doc in fused]
