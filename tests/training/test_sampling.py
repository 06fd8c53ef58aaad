"""A list holds what was asked for: candidates and strangers in their shares, a relevant one, nothing twice."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.sampling import Draw, Order, Pool, cosine, draw, make_pool

from rerank.types import Candidate, Passage, Query

STRANGERS = [Passage(f"s{number}", f"stranger {number}") for number in range(100)]


def pool(n: int, grades: dict[str, float] | None = None, query: str = "q?") -> Pool:
    candidates = [Candidate(Passage(f"c{number}", f"candidate {number}"), -number) for number in range(n)]
    return make_pool(Query(query), candidates, grades or {})


def ids(passages: tuple[Passage, ...]) -> list[str]:
    return [passage.doc_id for passage in passages]


@given(n=st.integers(2, 20), share=st.floats(0, 1), seed=st.integers())
def test_share_of_strangers_is_that_of_the_passages_beside_the_relevant_one(n: int, share: float, seed: int) -> None:
    drawn = ids(draw(pool(30, {"c7": 1.0}), STRANGERS, Draw(n, n, share), Random(seed)))
    assert len(set(drawn)) == n
    assert sum(doc_id.startswith("s") for doc_id in drawn) == round(share * (n - 1))


@given(seed=st.integers())
def test_candidates_keep_their_order_and_strangers_come_last(seed: int) -> None:
    drawn = ids(draw(pool(30), STRANGERS, Draw(10, 10, 0.5), Random(seed)))
    candidates = [int(doc_id[1:]) for doc_id in drawn if doc_id.startswith("c")]
    assert drawn[:5] == [f"c{number}" for number in sorted(candidates)]


def test_order_by_cosine_is_that_of_the_vectors_and_draws_the_same_passages() -> None:
    vectors = np.eye(10, dtype=np.float32)
    query = Query("q?", vector=np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 0], dtype=np.float32))
    passages = [Passage(f"c{number}", f"candidate {number}", vector=vectors[number]) for number in range(10)]
    ranked = make_pool(query, [Candidate(passage, None) for passage in passages], {})
    drawn = draw(ranked, [], Draw(6, 6, order=Order.COSINE), Random(0))
    cosines = [cosine(query, passage) for passage in drawn]
    assert cosines == sorted(cosines, reverse=True)
    assert set(ids(drawn)) == set(ids(draw(ranked, [], Draw(6, 6), Random(0))))


def test_shuffled_lists_put_the_relevant_passage_everywhere() -> None:
    how = Draw(4, 4, 1.0, order=Order.RANDOM)
    drawn = [ids(draw(pool(1, {"c0": 1.0}), STRANGERS, how, Random(seed))) for seed in range(100)]
    assert {doc_ids.index("c0") for doc_ids in drawn} == {0, 1, 2, 3}


@given(seed=st.integers())
def test_one_relevant_candidate_is_always_there(seed: int) -> None:
    drawn = ids(draw(pool(100, {"c50": 2.0, "c99": 1.0}), [], Draw(2, 3), Random(seed)))
    assert {"c50", "c99"} & set(drawn)


def test_sizes_take_every_value_of_the_range() -> None:
    sizes = {len(draw(pool(10), [], Draw(2, 4), Random(seed))) for seed in range(100)}
    assert sizes == {2, 3, 4}


def test_same_seed_gives_the_same_list() -> None:
    how = Draw(5, 20, 0.3)
    assert draw(pool(30), STRANGERS, how, Random("7")) == draw(pool(30), STRANGERS, how, Random("7"))


@pytest.mark.parametrize(("candidates", "strangers", "expected"), [(0, 0, 0), (1, 0, 1), (3, 1, 4)])
def test_list_is_shorter_where_there_is_not_enough(candidates: int, strangers: int, expected: int) -> None:
    assert len(draw(pool(candidates), STRANGERS[:strangers], Draw(10, 10, 0.5), Random(0))) == expected


def test_stranger_is_no_candidate_not_relevant_and_does_not_hold_the_query() -> None:
    strangers = [
        Passage("c0", "other text, same id"),
        Passage("s1", "candidate 0"),
        Passage("s2", "judged relevant"),
        Passage("s3", "how long? is asked here"),
        Passage("s4", "fine"),
        Passage("s5", "fine"),
    ]
    drawn = draw(pool(1, {"c0": 1.0, "s2": 3.0}, query="how long?"), strangers, Draw(6, 6, 1.0), Random(0))
    assert [passage.text for passage in drawn] == ["candidate 0", "fine"]


def test_pool_keeps_the_first_of_equal_texts_with_the_better_grade() -> None:
    candidates = [Candidate(Passage(doc_id, text)) for doc_id, text in [("a", "same"), ("b", "same"), ("c", "other")]]
    made = make_pool(Query("q?"), candidates, {"b": 2.0})
    assert [candidate.passage.doc_id for candidate in made.candidates] == ["a", "c"]
    assert (made.grades["a"], made.grades["c"]) == (2.0, 0.0)
