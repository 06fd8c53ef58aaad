"""Who says how relevant the passages of a drawn list are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rerank.reranker import Reranker
from rerank.retrieval.hybrid import z_score_sum
from rerank.types import CandidateSource, Passage, Query, RankOptions, ScoredDoc
from rerank_training.data import relevance_of
from rerank_training.sampling import Pool, cosine


class Teacher(Protocol):
    """Gives each of `passages`, which were drawn for `pool.query`, its relevance."""

    def __call__(self, pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]: ...


def by_grades(pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
    """The pool's grades: qrels, or 1 for the passage that the query was made from."""
    return tuple(pool.grades.get(passage.doc_id, 0.0) for passage in passages)


def by_cosine(pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
    """The encoder's cosine; query and passages carry their vectors."""
    return tuple(cosine(pool.query, passage) for passage in passages)


def by_fusion(pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
    """Cosine + 0.3 BM25 as z-scores over the whole pool (and the passages), see rerank/retrieval/hybrid.py.

    The pool's scores are BM25's. A passage from outside the pool gets the lowest of them.
    """
    scored = [(c.passage.doc_id, c.score) for c in pool.candidates]
    bm25 = [ScoredDoc(doc_id, score) for doc_id, score in scored if score is not None]
    read = {passage.doc_id: passage for passage in [*(c.passage for c in pool.candidates), *passages]}
    dense = [ScoredDoc(doc_id, cosine(pool.query, passage)) for doc_id, passage in read.items()]
    fused = z_score_sum([bm25, dense])
    return tuple(fused[passage.doc_id] for passage in passages)


class ByReranker:
    """The order of a model: n for the first of n, then one less a rank.

    Args:
        reranker: open.
        model: one of its models; empty: its first.
    """

    def __init__(self, reranker: Reranker, model: str = "") -> None:
        self._reranker = reranker
        self._options = RankOptions(model=model)

    def __call__(self, pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
        query = Query(pool.query.text, pool.query.query_id, pool.query.instruction)  # no vector: the encoder may differ
        candidates = [CandidateSource(passage.doc_id, passage.text) for passage in passages]
        ranked = self._reranker.rerank(query, candidates, self._options).ranked
        return relevance_of([candidate.position for candidate in ranked], len(passages))
