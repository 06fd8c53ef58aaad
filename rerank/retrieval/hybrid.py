"""Hybrid retrieval: fusion of BM25 and dense results by reciprocal rank or by z-scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import TypeAlias

from rerank.retrieval.base import Retriever
from rerank.types import Query, ScoredDoc

#: Ranked lists of several retrievers for one query → fused score by doc_id.
Fusion: TypeAlias = Callable[[Sequence[Sequence[ScoredDoc]]], dict[str, float]]

#: The constant k of reciprocal rank fusion (Cormack et al., SIGIR 2009, section 2).
_RRF_K = 60
#: Weights of BM25 and of dense retrieval in the sum of z-scores.
_Z_WEIGHTS = (0.3, 1.0)


class HybridRetriever:
    """Retrieves with BM25 and with the dense retriever to the same depth, and fuses both results."""

    def __init__(self, bm25: Retriever, dense: Retriever, fusion: Fusion) -> None:
        self._retrievers = (bm25, dense)
        self._fusion = fusion

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredDoc]]:
        results = [retriever.search(queries, depth) for retriever in self._retrievers]
        return [best(self._fusion(runs), depth) for runs in zip(*results, strict=True)]


def reciprocal_rank(runs: Sequence[Sequence[ScoredDoc]]) -> dict[str, float]:
    """Reciprocal rank fusion: score(d) = Σ over runs of 1 / (60 + rank of d), rank 1 for the first.

    A run without d contributes nothing.
    """
    fused: dict[str, float] = {}
    for run in runs:
        for rank, doc in enumerate(run, start=1):
            fused[doc.doc_id] = fused.get(doc.doc_id, 0.0) + 1.0 / (_RRF_K + rank)
    return fused


def z_score_sum(runs: Sequence[Sequence[ScoredDoc]]) -> dict[str, float]:
    """Weighted sum of z-scores: score(d) = Σ over runs of wᵢ · (scoreᵢ(d) - meanᵢ) / standard deviationᵢ.

    A run without d contributes its lowest z-score.
    """
    fused: dict[str, float] = {doc.doc_id: 0.0 for run in runs for doc in run}
    for weight, run in zip(_Z_WEIGHTS, runs, strict=True):
        z = _z_scores(run)
        lowest = min(z.values(), default=0.0)
        for doc_id in fused:
            fused[doc_id] += weight * z.get(doc_id, lowest)
    return fused


def best(scores: Mapping[str, float], depth: int) -> list[ScoredDoc]:
    """The `depth` documents with the highest scores; equal scores keep the order of `scores`."""
    ranked = sorted(scores.items(), key=lambda item: -item[1])[:depth]
    return [ScoredDoc(doc_id, score) for doc_id, score in ranked]


def _z_scores(run: Sequence[ScoredDoc]) -> dict[str, float]:
    scores = [doc.score for doc in run]
    if not scores:
        return {}
    mean, deviation = fmean(scores), pstdev(scores)
    return {doc.doc_id: (doc.score - mean) / deviation if deviation > 0 else 0.0 for doc in run}
