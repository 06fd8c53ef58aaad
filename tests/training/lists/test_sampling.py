"""Sampled lists: size, order, and always a relevant passage."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.lists.sampling import ListOrder, Pool, cosine, make_pool, sample_passages

from rerank.types import Passage, Query


def pool(n: int, grades: dict[str, float] | None = None) -> Pool:
    candidates = [Passage(f"c{number}", f"candidate {number}", -number) for number in range(n)]
    return make_pool(Query("q?"), candidates, grades or {})


def ids(passages: tuple[Passage, ...]) -> list[str]:
    return [passage.doc_id for passage in passages]


@given(seed=st.integers())
def test_candidates_keep_their_order(seed):
    sampled = [int(doc_id[1:]) for doc_id in ids(sample_passages(pool(30), (10, 10), Random(seed)))]
    assert sampled == sorted(set(sampled))
    assert len(sampled) == 10


def test_cosine_order_samples_the_same_passages():
    vectors = np.eye(10, dtype=np.float32)
    query = Query("q?", vector=np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 0], dtype=np.float32))
    passages = [Passage(f"c{number}", f"candidate {number}", vector=vectors[number]) for number in range(10)]
    ranked = make_pool(query, [replace(passage, score=None) for passage in passages], {})
    sampled = sample_passages(ranked, (6, 6), Random(0), ListOrder.COSINE)
    cosines = [cosine(query, passage) for passage in sampled]
    assert cosines == sorted(cosines, reverse=True)
    assert set(ids(sampled)) == set(ids(sample_passages(ranked, (6, 6), Random(0))))


def test_random_order_puts_the_relevant_passage_at_every_position():
    pool_of_four = pool(4, {"c0": 1.0})
    sampled = [ids(sample_passages(pool_of_four, (4, 4), Random(seed), ListOrder.RANDOM)) for seed in range(100)]
    assert {doc_ids.index("c0") for doc_ids in sampled} == {0, 1, 2, 3}


@given(seed=st.integers())
def test_one_relevant_candidate_is_always_sampled(seed):
    sampled = ids(sample_passages(pool(100, {"c50": 2.0, "c99": 1.0}), (2, 3), Random(seed)))
    assert {"c50", "c99"} & set(sampled)


@pytest.mark.parametrize("candidates", [0, 1, 3])
def test_list_is_shorter_when_passages_are_missing(candidates):
    assert len(sample_passages(pool(candidates), (10, 10), Random(0))) == candidates


def test_pool_keeps_the_first_of_equal_texts_with_the_better_grade():
    candidates = [Passage(doc_id, text) for doc_id, text in [("a", "same"), ("b", "same"), ("c", "other")]]
    created = make_pool(Query("q?"), candidates, {"b": 2.0})
    assert [candidate.doc_id for candidate in created.candidates] == ["a", "c"]
    assert (dict(created.grades), created.left_out) == ({"a": 2.0, "b": 2.0}, 1)
    assert make_pool(Query("q?"), candidates, {"a": 3.0, "b": 2.0}).grades["a"] == 3.0
