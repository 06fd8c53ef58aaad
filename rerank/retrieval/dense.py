"""Dense retrieval: FAISS over the encoder's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval.store import PassageStore
from rerank.types import Matrix, Query, ScoredDoc

try:
    import faiss
except ModuleNotFoundError as error:
    raise ConfigError("FAISS is missing; install rerank[cpu], or rerank[gpu] on a machine with CUDA") from error

_HNSW_LINKS = 32
_HNSW_EF = 256  # candidates kept while building and searching


class DenseRetriever:
    """Inner product of unit vectors, which is their cosine.

    Args:
        store: holds the vectors and their ids.
        encoder: the one that made the vectors.
        hnsw: a file that `write_hnsw` wrote, for approximate search; None searches exactly.
    """

    def __init__(self, store: PassageStore, encoder: Encoder, hnsw: Path | None = None) -> None:
        self._store = store
        self._encoder = encoder
        self._index = faiss.read_index(str(hnsw)) if hnsw else _flat(store.vectors)

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredDoc]]:
        depth = min(depth, len(self._store))
        if not queries or depth == 0:
            return [[] for _ in queries]
        scores, rows = self._index.search(query_vectors(self._encoder, queries), depth)
        return [self._scored_docs(s, r) for s, r in zip(scores, rows, strict=True)]

    def _scored_docs(self, scores: np.ndarray, rows: np.ndarray) -> list[ScoredDoc]:
        found = sorted((-float(score), int(row)) for score, row in zip(scores, rows, strict=True) if row >= 0)
        doc_ids = self._store.doc_ids([row for _, row in found])
        return [ScoredDoc(doc_id, -score) for doc_id, (score, _) in zip(doc_ids, found, strict=True)]


def query_vectors(encoder: Encoder, queries: Sequence[Query]) -> Matrix:
    """(len(queries), D); encodes those that have no vector yet."""
    missing = iter(encoder.encode([query.text for query in queries if query.vector is None]))
    return np.stack([next(missing) if query.vector is None else query.vector for query in queries])


def with_vector(encoder: Encoder, query: Query) -> Query:
    """The query with its vector, so that nobody encodes it again."""
    return replace(query, vector=query_vectors(encoder, [query])[0])


def write_hnsw(vectors: Matrix, path: Path) -> None:
    """Builds a graph for approximate search (Malkov and Yashunin 2018) over (N, D) vectors."""
    index = faiss.IndexHNSWFlat(vectors.shape[1], _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _HNSW_EF
    index.hnsw.efSearch = _HNSW_EF
    index.add(np.ascontiguousarray(vectors))
    faiss.write_index(index, str(path))


def _flat(vectors: Matrix) -> faiss.Index:
    """Exact search, on the GPUs where this build of FAISS sees any."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors))
    return faiss.index_cpu_to_all_gpus(index) if faiss.get_num_gpus() else index
