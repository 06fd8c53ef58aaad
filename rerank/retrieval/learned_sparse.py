"""Retrieval by learned sparse vectors: the passages with the largest dot products with the query's vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank.models.sparse_encoder import SparseEncoder
from rerank.retrieval.base import ScoredRow
from rerank.retrieval.integrity import damaged
from rerank.retrieval.sparse_store import SparseStore
from rerank.types import Query
from rerank.util.sparse_vectors import SparseVector


@dataclass(frozen=True, slots=True)
class LearnedSparseRetriever:
    """Retrieves by an inverted index of weights: exact, term by term of the query.

    Args:
        store: the vectors of the passages.
        encoder: that of the vectors, for queries.
        passages: their number.
    """

    store: SparseStore
    encoder: SparseEncoder
    passages: int

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredRow]]:
        """As `Retriever.search`; passages that share no term with the query are not found."""
        return [self._search(self.encoder.encode_query(query.text), depth) for query in queries]

    def reads_whole(self, query: Query) -> bool:
        return self.encoder.reads_whole_query(query.text)

    def _search(self, query: SparseVector, depth: int) -> list[ScoredRow]:
        scores = np.zeros(self.passages, dtype=np.float32)
        for term, weight in zip(query.terms.tolist(), query.weights, strict=True):
            rows, weights = self.store.by_term.read(term)
            if len(rows) and int(rows.max()) >= self.passages:
                raise damaged(self.store.by_term.folder, f"term {term} has a row beyond {self.passages}")
            scores[rows] += weight * weights.astype(np.float32)  # a term has each row once
        found = np.flatnonzero(scores > 0)
        if len(found) > depth:
            least = np.partition(scores[found], len(found) - depth)[len(found) - depth] if depth else np.inf
            found = found[scores[found] >= least]
        best = found[np.argsort(-scores[found], kind="stable")][:depth]  # collection order among equal scores
        return [ScoredRow(row, float(scores[row])) for row in best.tolist()]
