"""Learned sparse retrieval: a slow product gives the same list, alone and within hybrids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rerank.errors import IndexMismatch, NotConfigured
from rerank.models.sparse_encoder import SparseEncoder
from rerank.retrieval.hybrid import best, z_score_sum
from rerank.retrieval.index import Index
from rerank.retrieval.learned_sparse import LearnedSparseRetriever
from rerank.retrieval.sparse_store import SparseStore, join_parts, write_part
from rerank.types import FirstStage, FirstStageKind, Query
from rerank.util.sparse_vectors import SparseVector
from tests.conftest import PASSAGES

QUERIES = [Query("string instruments"), Query("how long does a flea live")]


class FixedEncoder:
    """Stands for the encoder of queries that have this vector."""

    def __init__(self, vector: SparseVector) -> None:
        self._vector = vector

    def encode_query(self, text: str) -> SparseVector:
        return self._vector


def vector(**weights: float) -> SparseVector:
    """The vector with these weights of the terms a, b, …"""
    terms = np.array([ord(name) - ord("a") for name in weights], dtype=np.int32)
    return SparseVector(terms, np.array([*weights.values()], dtype=np.float32))


def retriever(folder: Path, vectors: list[SparseVector], query: SparseVector) -> LearnedSparseRetriever:
    write_part(folder / "0.npz", vectors)
    join_parts([folder / "0.npz"], folder, 26)
    store = SparseStore(folder, len(vectors), 26)
    return LearnedSparseRetriever(store, FixedEncoder(query), len(vectors))  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4, 9])
def test_best_come_first_and_equal_scores_in_collection_order(depth: int, tmp_path: Path) -> None:
    vectors = [vector(a=1.0), vector(z=9.0), vector(b=2.0), vector(a=1.0, c=5.0), vector(a=0.5, b=2.0), vector(b=0.5)]
    (found,) = retriever(tmp_path, vectors, vector(a=2.0, b=1.0)).search([Query("x")], depth)
    expected = [(4, 3.0), (0, 2.0), (2, 2.0), (3, 2.0), (5, 0.5)]
    assert [(hit.row, hit.score) for hit in found] == expected[:depth]


def test_row_beyond_the_passages_is_damage(tmp_path: Path) -> None:
    searcher = retriever(tmp_path, [vector(a=1.0)], vector(a=1.0))
    np.save(tmp_path / "sparse" / "rows.npy", np.array([7], dtype=np.uint32))
    with pytest.raises(IndexMismatch, match="row beyond 1"):
        LearnedSparseRetriever(SparseStore(tmp_path, 1, 26), searcher.encoder, 1).search([Query("x")], 5)


def test_scores_are_those_of_all_passages(sparse_index: Index, sparse_encoder: SparseEncoder) -> None:
    passages = sparse_index.store.at_rows(range(len(PASSAGES)))
    vectors = [passage.sparse for passage in passages if passage.sparse is not None]
    for query, hits in zip(QUERIES, sparse_index.search(FirstStage.LEARNED_SPARSE, QUERIES, 12), strict=True):
        scores = sparse_encoder.scores(sparse_encoder.encode_query(query.text), vectors)
        expected = {passage.doc_id: score for passage, score in zip(passages, scores.tolist(), strict=True) if score}
        assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(expected, rel=1e-3)
        assert [hit.score for hit in hits] == sorted(expected.values(), reverse=True) or len(hits) == len(expected)
    assert sparse_index.search(FirstStage.LEARNED_SPARSE, QUERIES[1:], 1)[0][0].doc_id == "flea"


@pytest.mark.parametrize(
    ("stage", "weights"),
    [
        (FirstStage.HYBRID_BM25_SPARSE, {"bm25": 0.6, "learned-sparse": 0.5}),
        (FirstStage.HYBRID_DENSE_SPARSE, {"dense": 1.0, "learned-sparse": 0.5}),
        (FirstStage.HYBRID_ALL, {"bm25": 0.6, "dense": 1.0, "learned-sparse": 0.5}),
    ],
)
def test_hybrid_is_the_weighted_sum_of_z_scores(
    stage: FirstStage, weights: dict[str, float], sparse_index: Index
) -> None:
    for query in QUERIES:
        runs = [{hit.row: hit.score for hit in sparse_index.search_rows(part, [query], 5)[0]} for part in stage.parts]
        (found,) = sparse_index.search_rows(stage, [query], 5)
        expected = best(z_score_sum(runs, [weights[part] for part in stage.parts]), 5)
        assert {hit.row: hit.score for hit in found} == pytest.approx(expected)
        has_bm25 = FirstStage.BM25 in stage.parts
        assert all((hit.bm25_score is not None) == has_bm25 for hit in found)
        assert stage.kind is (FirstStageKind.HYBRID if has_bm25 else FirstStageKind.LEXICAL)


@pytest.mark.parametrize("stage", [stage for stage in FirstStage if FirstStage.LEARNED_SPARSE in stage.parts])
def test_index_without_sparse_vectors_asked_for_them_says_the_way_out(stage: FirstStage, index: Index) -> None:
    message = f"first stage {stage} reads sparse vectors, which the index .* lacks; build it again with `rerank index`"
    with pytest.raises(NotConfigured, match=message) as raised:
        index.candidates(stage, QUERIES[0], 5)
    assert "\n" not in str(raised.value)
