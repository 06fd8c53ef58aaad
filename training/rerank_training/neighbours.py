"""The first stage of collections without one: the encoder's nearest neighbours, by a plain matrix product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from rerank.types import Candidate, Matrix, Passage, Query, Vector
from rerank_training.sampling import Pool, make_pool

#: Texts → (N, D) unit vectors.
Encode: TypeAlias = Callable[[Sequence[str]], Matrix]

#: Queries that are compared with all passages at once: 64 x 100,000 float32 are 26 MB.
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """A query to a collection.

    Attributes:
        grades: of passages of the collection; those above 0 become candidates however far they are.
        replaced: what stands in for the passage of the same doc_id, in this query's candidates only.
    """

    query: Query
    grades: Mapping[str, float]
    replaced: Passage | None = None


def with_vectors(passages: Sequence[Passage], vectors: Matrix) -> list[Passage]:
    """Each passage with its row of (N, D)."""
    return [replace(passage, vector=vector) for passage, vector in zip(passages, vectors, strict=True)]


def neighbour_pools(
    asked: Sequence[Asked], passages: Sequence[Passage], vectors: Matrix, encode: Encode, depth: int
) -> Iterator[Pool]:
    """For each query the `depth` nearest passages and the relevant ones, by falling cosine.

    Args:
        passages: with their vectors; `vectors` (N, D) holds the same.
    """
    rows = {passage.doc_id: row for row, passage in enumerate(passages)}
    for start in range(0, len(asked), _CHUNK):
        chunk = _encoded(asked[start : start + _CHUNK], encode)
        scores = np.stack([_vector(item.query) for item in chunk]) @ vectors.T  # (chunk, N)
        for item, row_scores in zip(chunk, scores, strict=True):
            relevant = [rows[doc_id] for doc_id, grade in item.grades.items() if grade > 0 and doc_id in rows]
            found = dict.fromkeys([*_highest(row_scores, depth), *relevant])
            yield _pool(item, [passages[row] for row in found])


def lonely_pools(asked: Sequence[Asked], passages: Sequence[Passage]) -> Iterator[Pool]:
    """For each query the relevant passages only, without any encoder: for lists whose other passages are random."""
    own = {passage.doc_id: passage for passage in passages}
    for item in asked:
        found = [own[doc_id] for doc_id, grade in item.grades.items() if grade > 0 and doc_id in own]
        yield make_pool(item.query, [Candidate(_standing_in(item, passage)) for passage in found], item.grades)


def _encoded(chunk: Sequence[Asked], encode: Encode) -> list[Asked]:
    """The queries, and the passages that stand in, with their vectors."""
    texts = [item.query.text for item in chunk] + [item.replaced.text for item in chunk if item.replaced]
    vectors = iter(encode(texts))
    queries = [replace(item.query, vector=next(vectors)) for item in chunk]
    stand_ins = [replace(item.replaced, vector=next(vectors)) if item.replaced else None for item in chunk]
    return [replace(item, query=q, replaced=r) for item, q, r in zip(chunk, queries, stand_ins, strict=True)]


def _pool(item: Asked, found: Sequence[Passage]) -> Pool:
    """A passage that holds the whole query is as relevant as the one that the query came from."""
    stand_ins = [_standing_in(item, passage) for passage in found]
    scored = [Candidate(passage, float(_vector(item.query) @ _vector(passage))) for passage in stand_ins]
    verbatim = {passage.doc_id: 1.0 for passage in stand_ins if item.query.text in passage.text}
    by_score = sorted(scored, key=lambda candidate: -(candidate.score or 0.0))
    return make_pool(item.query, by_score, {**verbatim, **item.grades})


def _standing_in(item: Asked, passage: Passage) -> Passage:
    return item.replaced if item.replaced and item.replaced.doc_id == passage.doc_id else passage


def _highest(scores: Vector, n: int) -> list[int]:
    """Rows of the n highest scores, in no order."""
    if n >= len(scores):
        return list(range(len(scores)))
    return [int(row) for row in np.argpartition(-scores, n)[:n]] if n else []


def _vector(holder: Query | Passage) -> Vector:
    if holder.vector is None:
        raise RuntimeError(f"no vector for {holder}; this is a bug")
    return holder.vector
