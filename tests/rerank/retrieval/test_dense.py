"""Dense retrieval: equal to a matrix product, ties, and the approximate index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rerank.models.encoder import Encoder
from rerank.retrieval.dense import DenseRetriever, write_hnsw
from rerank.retrieval.store import PassageStore, StoreWriter
from rerank.types import Matrix, Passage, Query

N = 400


def unit_rows(n: int, dimension: int, seed: int) -> Matrix:
    rows = np.random.default_rng(seed).normal(size=(n, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def store(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PassageStore:
    """Random vectors; passages 7 and 300 are the same."""
    folder = tmp_path_factory.mktemp("dense")
    writer = StoreWriter(folder)
    list(writer.add(Passage(f"d{n}", "") for n in range(N)))
    vectors = writer.allocate_vectors(N, encoder.id.dimension)
    vectors[:] = unit_rows(N, encoder.id.dimension, seed=1)
    vectors[300] = vectors[7]
    writer.close()
    return PassageStore(folder)


@pytest.fixture(scope="module")
def queries(encoder: Encoder) -> list[Query]:
    return [Query(f"q{n}", vector=row) for n, row in enumerate(unit_rows(20, encoder.id.dimension, seed=2))]


def by_matrix_product(store: PassageStore, query: Query, depth: int) -> list[str]:
    assert query.vector is not None
    return [f"d{row}" for row in np.argsort(-(store.vectors @ query.vector), kind="stable")[:depth]]


def test_flat_search_equals_the_matrix_product(store: PassageStore, encoder: Encoder, queries: list[Query]) -> None:
    found = DenseRetriever(store, encoder).search(queries, 50)
    assert [[hit.doc_id for hit in hits] for hits in found] == [by_matrix_product(store, q, 50) for q in queries]


def test_scores_are_cosines(store: PassageStore, encoder: Encoder) -> None:
    itself = Query("x", vector=np.array(store.vectors[5]))
    best = DenseRetriever(store, encoder).search([itself], 1)[0][0]
    assert (best.doc_id, pytest.approx(1.0, abs=1e-6)) == ("d5", best.score)


def test_equal_vectors_keep_collection_order(store: PassageStore, encoder: Encoder) -> None:
    found = DenseRetriever(store, encoder).search([Query("x", vector=np.array(store.vectors[7]))], 2)[0]
    assert [hit.doc_id for hit in found] == ["d7", "d300"]


def test_depth_beyond_the_collection_returns_all(store: PassageStore, encoder: Encoder, queries: list[Query]) -> None:
    assert len(DenseRetriever(store, encoder).search(queries[:1], 10 * N)[0]) == N


def test_no_query_gives_no_result(store: PassageStore, encoder: Encoder) -> None:
    assert DenseRetriever(store, encoder).search([], 5) == []


def test_query_without_vector_is_encoded(encoder: Encoder, store: PassageStore) -> None:
    text = "which insect jumps"
    known = Query(text, vector=encoder.encode([text])[0])
    retriever = DenseRetriever(store, encoder)
    assert retriever.search([Query(text)], 10) == retriever.search([known], 10)


def test_hnsw_search_agrees_with_exact_search(
    store: PassageStore, encoder: Encoder, queries: list[Query], tmp_path: Path
) -> None:
    write_hnsw(store.vectors, tmp_path / "hnsw.faiss")
    approximate = DenseRetriever(store, encoder, tmp_path / "hnsw.faiss").search(queries, 10)
    exact = DenseRetriever(store, encoder).search(queries, 10)
    shared = sum(len({h.doc_id for h in a} & {h.doc_id for h in e}) for a, e in zip(approximate, exact, strict=True))
    assert shared >= 0.99 * 10 * len(queries)


@pytest.mark.gpu
def test_gpu_search_equals_the_matrix_product(store: PassageStore, encoder: Encoder, queries: list[Query]) -> None:
    faiss = pytest.importorskip("faiss")
    if not faiss.get_num_gpus():
        pytest.skip("this build of FAISS finds no GPU; install rerank-listwise[gpu]")
    found = DenseRetriever(store, encoder).search(queries, 10)
    assert [[hit.doc_id for hit in hits] for hits in found] == [by_matrix_product(store, q, 10) for q in queries]
