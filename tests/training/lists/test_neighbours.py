"""Pools from nearest neighbours: equal to a sort of all cosines, plus the relevant passages."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rerank_training.lists.neighbours import CollectionQuery, neighbour_pools, with_vectors
from rerank_training.lists.sampling import Pool

from rerank.types import Matrix, Passage, Query


def encode(texts: Sequence[str]) -> Matrix:
    """A random unit vector for each text, always the same one."""
    if not texts:
        return np.empty((0, 8), dtype=np.float32)
    vectors = [np.random.default_rng(list(text.encode())).normal(size=8) for text in texts]
    return np.stack([vector / np.linalg.norm(vector) for vector in vectors]).astype(np.float32)


PASSAGES = [Passage(f"d{number}", f"passage number {number}") for number in range(150)]
VECTORS = encode([passage.text for passage in PASSAGES])


def pools(queries: list[CollectionQuery], depth: int) -> list[Pool]:
    encoder: Any = SimpleNamespace(encode_queries=encode, encode_passages=encode)
    return list(neighbour_pools(queries, with_vectors(PASSAGES, VECTORS), VECTORS, encoder, depth))


def ids(pool: Pool) -> list[str]:
    return [candidate.passage.doc_id for candidate in pool.candidates]


@pytest.mark.parametrize("depth", [0, 1, 10, 149, 150, 200])
def test_candidates_are_the_highest_of_all_cosines(depth: int) -> None:
    questions = [f"question {number}" for number in range(70)]  # more than one chunk
    found = pools([CollectionQuery(Query(text), {}) for text in questions], depth)
    for text, pool in zip(questions, found, strict=True):
        expected = np.argsort(-(VECTORS @ encode([text])[0]), kind="stable")[:depth]
        assert ids(pool) == [f"d{row}" for row in expected]


def test_replacement_is_ranked_by_its_own_vector() -> None:
    query = CollectionQuery(Query("question"), {"d3": 1.0}, replacement=Passage("d3", "question"))
    (pool,) = pools([query], depth=10)
    assert pool.candidates[0].passage == Passage("d3", "question")
    assert pool.candidates[0].score == pytest.approx(1.0, abs=1e-6)
    assert ids(pool).count("d3") == 1


def test_passage_that_contains_the_query_is_relevant() -> None:
    (pool,) = pools([CollectionQuery(Query("number 14"), {"d140": 1.0, "d141": 0.0})], depth=150)
    relevant = {doc_id for doc_id, grade in pool.grades.items() if grade > 0}
    assert relevant == {"d14", *(f"d14{digit}" for digit in "023456789")}
