"""Dense retrieval with FAISS over the encoder's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rerank.errors import ConfigError, IndexMismatch
from rerank.models.encoder import Encoder
from rerank.retrieval.integrity import damaged
from rerank.retrieval.store import PassageStore
from rerank.types import Matrix, Query, ScoredDoc

try:
    import faiss
except ModuleNotFoundError as error:
    raise ConfigError(
        "FAISS is not installed; install rerank-listwise[cpu], or rerank-listwise[gpu] on a machine with CUDA"
    ) from error

#: M and ef (for construction and for search) of Malkov and Yashunin 2018.
_HNSW_M, _HNSW_EF = 32, 256
_CHECKED_ROWS = 65_536


class DenseRetriever:
    """Retrieves by inner product of unit vectors, which is their cosine.

    Args:
        store: the passage vectors and their ids.
        encoder: the encoder of the passage vectors, for queries.
        hnsw: file written by `write_hnsw`, for approximate search; None for exact search.
    """

    def __init__(self, store: PassageStore, encoder: Encoder, hnsw: Path | None = None) -> None:
        self._store = store
        self._encoder = encoder
        self._index = _read_hnsw(hnsw, len(store)) if hnsw else _flat(store.vectors)

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredDoc]]:
        depth = min(depth, len(self._store))
        if not queries or depth == 0:
            return [[] for _ in queries]
        scores, rows = self._index.search(query_vectors(self._encoder, queries), depth)
        return [self._scored_docs(s, r) for s, r in zip(scores, rows, strict=True)]

    def _scored_docs(self, scores: np.ndarray, rows: np.ndarray) -> list[ScoredDoc]:
        """The found passages, best first, in collection order among equal scores; FAISS fills missing rows with -1."""
        found = sorted((-float(score), int(row)) for score, row in zip(scores, rows, strict=True) if row >= 0)
        doc_ids = self._store.doc_ids([row for _, row in found])
        return [ScoredDoc(doc_id, -negated) for doc_id, (negated, _) in zip(doc_ids, found, strict=True)]


def query_vectors(encoder: Encoder, queries: Sequence[Query]) -> Matrix:
    """(len(queries), D): the vectors of the queries; encodes those that have none yet."""
    missing = iter(encoder.encode([query.text for query in queries if query.vector is None]))
    return np.stack([next(missing) if query.vector is None else query.vector for query in queries])


def with_vector(encoder: Encoder, query: Query) -> Query:
    """The query with its vector, so that it is encoded only once."""
    return replace(query, vector=query_vectors(encoder, [query])[0])


def write_hnsw(vectors: Matrix, path: Path) -> None:
    """Writes an HNSW graph (Malkov and Yashunin 2018) over (N, D) vectors, for approximate search."""
    index = faiss.IndexHNSWFlat(vectors.shape[1], _HNSW_M, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _HNSW_EF
    index.hnsw.efSearch = _HNSW_EF
    index.add(np.ascontiguousarray(vectors))
    faiss.write_index(index, str(path))


def _read_hnsw(path: Path, n: int) -> faiss.Index:
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise damaged(path, error) from error
    if index.ntotal != n:
        raise damaged(path, f"it has {index.ntotal} vectors instead of {n}")
    return index


def _flat(vectors: Matrix) -> faiss.Index:
    """An index for exact search, on the GPUs if this build of FAISS finds any. Raises: IndexMismatch for NaN."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    for first in range(0, len(vectors), _CHECKED_ROWS):
        rows = np.ascontiguousarray(vectors[first : first + _CHECKED_ROWS])
        if not np.isfinite(rows).all():
            raise IndexMismatch(
                f"vectors among the rows {first} to {first + len(rows) - 1} of the index are not finite; build it again"
            )
        index.add(rows)
    return faiss.index_cpu_to_all_gpus(index) if faiss.get_num_gpus() else index
