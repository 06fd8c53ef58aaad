"""First stage for collections that have none: exact nearest neighbours by the encoder's cosine similarity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rerank.models.encoder import Encoder
from rerank.types import Candidate, Matrix, Passage, Query, Vector
from rerank_training.lists.sampling import Pool, make_pool

#: Queries compared with all passages at once; the scores of 64 queries and 100,000 passages in float32 take 26 MB.
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class CollectionQuery:
    """A query to a collection, with its known relevant passages.

    Attributes:
        grades: doc_id → grade. Passages with a grade above 0 become candidates, no matter how distant they are.
        replacement: replaces the passage of the same doc_id among the candidates of this query.
    """

    query: Query
    grades: Mapping[str, float]
    replacement: Passage | None = None


def with_vectors(passages: Sequence[Passage], vectors: Matrix) -> list[Passage]:
    """Attaches to each passage its row of (N, D)."""
    return [replace(passage, vector=vector) for passage, vector in zip(passages, vectors, strict=True)]


def neighbour_pools(
    queries: Sequence[CollectionQuery], passages: Sequence[Passage], vectors: Matrix, encoder: Encoder, depth: int
) -> Iterator[Pool]:
    """For each query, the `depth` nearest passages and the relevant ones, by falling cosine.

    Args:
        passages: the collection, with vectors.
        vectors: (N, D), the same vectors as a matrix.
    """
    rows = {passage.doc_id: row for row, passage in enumerate(passages)}
    for start in range(0, len(queries), _CHUNK):
        chunk = _encode_queries(queries[start : start + _CHUNK], encoder)
        scores = np.stack([_vector(item.query) for item in chunk]) @ vectors.T  # (chunk, N)
        for item, row_scores in zip(chunk, scores, strict=True):
            relevant = [rows[doc_id] for doc_id, grade in item.grades.items() if grade > 0 and doc_id in rows]
            candidates = dict.fromkeys([*_highest(row_scores, depth), *relevant])
            yield _pool(item, [passages[row] for row in candidates])


def relevant_only_pools(queries: Sequence[CollectionQuery], passages: Sequence[Passage]) -> Iterator[Pool]:
    """For each query, only its relevant passages. Needs no encoder; for lists whose other passages are all random."""
    by_id = {passage.doc_id: passage for passage in passages}
    for item in queries:
        relevant = [by_id[doc_id] for doc_id, grade in item.grades.items() if grade > 0 and doc_id in by_id]
        yield make_pool(item.query, [Candidate(_replaced(item, passage)) for passage in relevant], item.grades)


def _encode_queries(chunk: Sequence[CollectionQuery], encoder: Encoder) -> list[CollectionQuery]:
    """Attaches vectors to the queries and to the replacement passages."""
    queries = encoder.encode_queries([item.query.text for item in chunk])
    replacements = iter(encoder.encode_passages([item.replacement.text for item in chunk if item.replacement]))
    passages = [replace(item.replacement, vector=next(replacements)) if item.replacement else None for item in chunk]
    return [
        replace(item, query=replace(item.query, vector=vector), replacement=passage)
        for item, vector, passage in zip(chunk, queries, passages, strict=True)
    ]


def _pool(item: CollectionQuery, found: Sequence[Passage]) -> Pool:
    """A passage that contains the whole query counts as relevant, like the passage that the query was taken from."""
    passages = [_replaced(item, passage) for passage in found]
    scored = [Candidate(passage, float(_vector(item.query) @ _vector(passage))) for passage in passages]
    verbatim = {passage.doc_id: 1.0 for passage in passages if item.query.text in passage.text}
    by_score = sorted(scored, key=lambda candidate: -(candidate.score or 0.0))
    return make_pool(item.query, by_score, {**verbatim, **item.grades})


def _replaced(item: CollectionQuery, passage: Passage) -> Passage:
    return item.replacement if item.replacement and item.replacement.doc_id == passage.doc_id else passage


def _highest(scores: Vector, n: int) -> list[int]:
    """Rows of the n highest scores, in no particular order."""
    if n >= len(scores):
        return list(range(len(scores)))
    return [int(row) for row in np.argpartition(-scores, n)[:n]] if n else []


def _vector(holder: Query | Passage) -> Vector:
    if holder.vector is None:
        raise RuntimeError(f"no vector for {holder}; this is a bug")
    return holder.vector
