"""Dense retrieval: the passages whose vectors have the largest cosine with the query's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rerank.models.encoder import Encoder
from rerank.retrieval.base import ScoredRow
from rerank.retrieval.vector_index import VectorIndex
from rerank.types import Matrix, Query


@dataclass(frozen=True, slots=True)
class DenseRetriever:
    """Retrieves by inner product of unit vectors, which is their cosine.

    Args:
        index: the vectors of the passages.
        encoder: the encoder of the passage vectors, for queries.
        passages: their number.
    """

    index: VectorIndex
    encoder: Encoder
    passages: int

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredRow]]:
        depth = min(depth, self.passages)
        if not queries or depth == 0:
            return [[] for _ in queries]
        scores, rows = self.index.search(query_vectors(self.encoder, queries), depth)
        return [_scored_rows(s, r) for s, r in zip(scores, rows, strict=True)]

    def reads_whole(self, query: Query) -> bool:
        return self.encoder.reads_whole_query(query.text)


def query_vectors(encoder: Encoder, queries: Sequence[Query]) -> Matrix:
    """(len(queries), D): the vectors of the queries; encodes those that have none yet."""
    missing = iter(encoder.encode_queries([query.text for query in queries if query.vector is None]))
    return np.stack([next(missing) if query.vector is None else query.vector for query in queries])


def _scored_rows(scores: np.ndarray, rows: np.ndarray) -> list[ScoredRow]:
    """The found passages, best first, in collection order among equal scores; missing ones have the row -1."""
    found = sorted((-float(score), int(row)) for score, row in zip(scores, rows, strict=True) if row >= 0)
    return [ScoredRow(row, -negated) for negated, row in found]
