"""Sampled lists: size, share of random negatives, order, and always a relevant passage."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.lists.sampling import (
    ListSampling,
    Pool,
    make_pool,
    sample_passages,
    sliding_order,
)

from rerank.types import Candidate, Passage, Query

COLLECTION = [Passage(f"s{number}", f"other {number}") for number in range(100)]


def pool(n: int, grades: dict[str, float] | None = None, query: str = "q?") -> Pool:
    candidates = [Candidate(Passage(f"c{number}", f"candidate {number}"), -number) for number in range(n)]
    return make_pool(Query(query), candidates, grades or {})


def ids(passages: tuple[Passage, ...]) -> list[str]:
    return [passage.doc_id for passage in passages]


@given(n=st.integers(2, 20), share=st.floats(0, 1), seed=st.integers())
def test_random_share_is_of_the_passages_other_than_the_relevant_one(n: int, share: float, seed: int) -> None:
    sampled = ids(sample_passages(pool(30, {"c7": 1.0}), COLLECTION, ListSampling(n, n, share), Random(seed)))
    assert len(set(sampled)) == n
    assert sum(doc_id.startswith("s") for doc_id in sampled) == round(share * (n - 1))


@given(n=st.integers(2, 20), seed=st.integers())
def test_sliding_order_keeps_the_first_half_and_sorts_the_second_nearly(n: int, seed: int) -> None:
    random = Random(seed)
    relevance = [random.random() for _ in range(n)]
    order = sliding_order(relevance, random)
    half = n // 2
    assert order[:half] == list(range(half))
    assert sorted(order[half:]) == list(range(half, n))


@given(seed=st.integers())
def test_one_relevant_candidate_is_always_sampled(seed: int) -> None:
    sampled = ids(sample_passages(pool(100, {"c50": 2.0, "c99": 1.0}), [], ListSampling(2, 3), Random(seed)))
    assert {"c50", "c99"} & set(sampled)


@pytest.mark.parametrize(("candidates", "collection", "expected"), [(0, 0, 0), (1, 0, 1), (3, 1, 4)])
def test_list_is_shorter_when_passages_are_missing(candidates: int, collection: int, expected: int) -> None:
    assert (
        len(sample_passages(pool(candidates), COLLECTION[:collection], ListSampling(10, 10, 0.5), Random(0)))
        == expected
    )


def test_random_negative_is_not_a_candidate_not_relevant_and_without_the_query() -> None:
    collection = [
        Passage("c0", "other text, same id"),
        Passage("s1", "candidate 0"),
        Passage("s2", "judged relevant"),
        Passage("s3", "how long? is asked here"),
        Passage("s4", "fine"),
        Passage("s5", "fine"),
    ]
    sampled = sample_passages(
        pool(1, {"c0": 1.0, "s2": 3.0}, query="how long?"), collection, ListSampling(6, 6, 1.0), Random(0)
    )
    assert [passage.text for passage in sampled] == ["candidate 0", "fine"]


def test_pool_keeps_the_first_of_equal_texts_with_the_better_grade() -> None:
    candidates = [Candidate(Passage(doc_id, text)) for doc_id, text in [("a", "same"), ("b", "same"), ("c", "other")]]
    created = make_pool(Query("q?"), candidates, {"b": 2.0})
    assert [candidate.passage.doc_id for candidate in created.candidates] == ["a", "c"]
    assert (created.grades["a"], created.grades["c"]) == (2.0, 0.0)
