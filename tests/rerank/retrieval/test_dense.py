"""Dense retrieval: equal to a matrix product, ties, and queries without vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rerank.models.encoder import Encoder
from rerank.retrieval.dense import DenseRetriever
from rerank.retrieval.store import PassageStore, allocate_vectors, write_passages
from rerank.retrieval.vector_index import open_vector_index
from rerank.types import Matrix, Passage, Query

N = 400


def unit_rows(n: int, dimension: int, seed: int) -> Matrix:
    rows = np.random.default_rng(seed).normal(size=(n, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def store(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PassageStore:
    """Random vectors; passages 7 and 300 are the same."""
    folder = tmp_path_factory.mktemp("dense")
    list(write_passages(folder, (Passage(f"d{n}", "") for n in range(N))))
    vectors, _ = allocate_vectors(folder, N, encoder.id.dimension)
    vectors[:] = unit_rows(N, encoder.id.dimension, seed=1)
    vectors[300] = vectors[7]
    return PassageStore(folder)


@pytest.fixture(scope="module")
def retriever(store: PassageStore, encoder: Encoder) -> DenseRetriever:
    return DenseRetriever(open_vector_index("flat", Path(), store.vectors), encoder, N)


@pytest.fixture(scope="module")
def queries(encoder: Encoder) -> list[Query]:
    return [Query(f"q{n}", vector=row) for n, row in enumerate(unit_rows(20, encoder.id.dimension, seed=2))]


def by_matrix_product(store: PassageStore, query: Query, depth: int) -> list[int]:
    assert query.vector is not None
    return np.argsort(-(store.vectors.mapped @ query.vector), kind="stable")[:depth].tolist()


def test_flat_search_equals_the_matrix_product(
    store: PassageStore, retriever: DenseRetriever, queries: list[Query]
) -> None:
    found = retriever.search(queries, 50)
    assert [[hit.row for hit in hits] for hits in found] == [by_matrix_product(store, q, 50) for q in queries]


def test_equal_vectors_keep_collection_order(store: PassageStore, retriever: DenseRetriever) -> None:
    found = retriever.search([Query("x", vector=np.array(store.vectors.mapped[7]))], 2)[0]
    assert [hit.row for hit in found] == [7, 300]


def test_query_without_vector_is_encoded(encoder: Encoder, retriever: DenseRetriever) -> None:
    text = "which insect jumps"
    known = Query(text, vector=encoder.encode_passages([text])[0])
    assert retriever.search([Query(text)], 10) == retriever.search([known], 10)


@pytest.mark.gpu
def test_gpu_search_equals_the_matrix_product(
    store: PassageStore, retriever: DenseRetriever, queries: list[Query]
) -> None:
    faiss = pytest.importorskip("faiss")
    if not faiss.get_num_gpus():
        pytest.skip("this build of FAISS finds no GPU; install rerank-listwise[gpu]")
    found = retriever.search(queries, 10)
    assert [[hit.row for hit in hits] for hits in found] == [by_matrix_product(store, q, 10) for q in queries]
