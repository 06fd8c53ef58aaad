"""Pools hold the nearest passages and the relevant ones, by cosine, as a sort of all cosines gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from rerank_training.neighbours import Asked, lonely_pools, neighbour_pools, with_vectors
from rerank_training.sampling import Pool

from rerank.types import Matrix, Passage, Query


def encode(texts: Sequence[str]) -> Matrix:
    """A random unit vector for each text, always the same one."""
    vectors = [np.random.default_rng(list(text.encode())).normal(size=8) for text in texts]
    return np.stack([vector / np.linalg.norm(vector) for vector in vectors]).astype(np.float32)


PASSAGES = [Passage(f"d{number}", f"passage number {number}") for number in range(150)]
VECTORS = encode([passage.text for passage in PASSAGES])


def pools(asked: list[Asked], depth: int) -> list[Pool]:
    return list(neighbour_pools(asked, with_vectors(PASSAGES, VECTORS), VECTORS, encode, depth))


def ids(pool: Pool) -> list[str]:
    return [candidate.passage.doc_id for candidate in pool.candidates]


@pytest.mark.parametrize("depth", [0, 1, 10, 149, 150, 200])
def test_candidates_are_the_highest_of_all_cosines(depth: int) -> None:
    questions = [f"question {number}" for number in range(70)]  # more than one chunk
    made = pools([Asked(Query(text), {}) for text in questions], depth)
    for text, pool in zip(questions, made, strict=True):
        slow = np.argsort(-(VECTORS @ encode([text])[0]), kind="stable")[:depth]
        assert ids(pool) == [f"d{row}" for row in slow]


def test_relevant_passage_is_a_candidate_however_far_it_is() -> None:
    (pool,) = pools([Asked(Query("question"), {"d3": 1.0, "d4": 0.0, "elsewhere": 1.0})], depth=0)
    assert ids(pool) == ["d3"]


def test_stand_in_takes_the_place_that_its_own_vector_gives_it() -> None:
    asked = Asked(Query("question"), {"d3": 1.0}, replaced=Passage("d3", "question"))
    (pool,) = pools([asked], depth=10)
    assert pool.candidates[0].passage == Passage("d3", "question")
    assert pool.candidates[0].score == pytest.approx(1.0, abs=1e-6)
    assert ids(pool).count("d3") == 1


def test_passage_that_holds_the_query_counts_as_relevant() -> None:
    (pool,) = pools([Asked(Query("number 14"), {"d140": 1.0, "d141": 0.0})], depth=150)
    relevant = {doc_id for doc_id, grade in pool.grades.items() if grade > 0}
    assert relevant == {"d14", *(f"d14{digit}" for digit in "023456789")}


def test_no_queries_give_no_pools() -> None:
    assert pools([], depth=10) == []


def test_lonely_pool_holds_the_relevant_passages_only() -> None:
    asked = [Asked(Query("q"), {"d3": 1.0, "d4": 0.0}), Asked(Query("r"), {"d5": 1.0}, replaced=Passage("d5", "less"))]
    first, second = lonely_pools(asked, PASSAGES)
    assert ids(first) == ["d3"]
    assert [candidate.passage.text for candidate in second.candidates] == ["less"]
