"""Unordered lists: the order of the candidates has no effect, and equal texts get equal scores."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.rankers.identity import IdentityRanker
from rerank.reranking.unordered import UnorderedList, shared_words
from rerank.types import Completeness, Passage, PreparedTexts, Ranking, RankOptions, StrategyKind
from tests.fakes import NumberRanker, number_in
from tests.serving import rank_once
from tests.slices import finished

QUERY = "how long does a flea live"
DOCUMENTS = ["Deserts are dry.", "A flea lives a year.", "The moon orbits the earth.", "A flea lives a year."]
UNORDERED = RankOptions(ordered=False)
SINGLE = replace(UNORDERED, strategy="single")


def place_ranker() -> NumberRanker:
    """Prefers what it reads first: the number in the text, less the place in the window. It truncates "relevance 3"."""

    def truncated(method: str, *arguments: Any) -> PreparedTexts | None:
        if method != "prepare":
            return None
        query, passages = arguments
        return PreparedTexts(query, tuple(passages), tuple(p.doc_id for p in passages if p.text == "relevance 3"))

    return NumberRanker(
        scores_of=lambda window: [number_in(p.text) - place for place, p in enumerate(window.passages)],
        instead=truncated,
    )


Rank = Callable[..., Ranking]


@pytest.fixture
def rank() -> Rank:
    """Ranks candidates by a `place_ranker` or, as the model "identity", by none."""

    def run(candidates: Sequence[Any], options: RankOptions = UNORDERED) -> Ranking:
        rankers = {"place": place_ranker(), "identity": IdentityRanker()}
        return rank_once(rankers, QUERY, candidates, options)

    return run


def rows(ranking: Ranking) -> list[tuple[str, float]]:
    return [(item.passage.doc_id, item.score) for item in ranking.ranked]


def of_numbers(numbers: Sequence[int], scored: bool = False) -> list[Passage]:
    """Candidates d0, d1, …, whose texts are equal where the numbers are."""
    return [
        Passage(f"d{i}", f"relevance {number}", score=float(i % 7) if scored else None)
        for i, number in enumerate(numbers)
    ]


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("strategy", [kind for kind in StrategyKind if kind is not StrategyKind.CASCADE])
def test_result_does_not_depend_on_the_order_sent(rank, strategy, scored):
    candidates = of_numbers([number % 40 for number in range(50)], scored)
    options = replace(UNORDERED, strategy=strategy, window_size=8)
    expected = rows(rank(candidates, options))
    assert sorted(doc_id for doc_id, _ in expected) == sorted(candidate.doc_id for candidate in candidates)
    for seed in range(3):
        shuffled = random.Random(seed).sample(candidates, len(candidates))
        assert rows(rank(shuffled, options)) == expected


@pytest.mark.parametrize("top_n", [0, 1, 2, 3, 4, 5, 6, 9])
def test_equal_texts_have_equal_scores_and_follow_one_another_by_doc_id(rank, top_n):
    found = rows(rank(of_numbers([5, 1, 5, 9, 1, 5]), replace(SINGLE, top_n=top_n)))
    assert [doc_id for doc_id, _ in found] == ["d3", "d0", "d2", "d5", "d1", "d4"][: top_n or None]
    scores = dict(found)
    assert len({scores[doc_id] for doc_id in ("d0", "d2", "d5") if doc_id in scores}) <= 1
    assert len(set(scores.values())) == len({doc_id for doc_id in ("d3", "d0", "d1") if doc_id in scores})


def test_text_of_the_index_equals_a_text_that_was_sent(index):
    ranker = NumberRanker()
    (stored,) = index.store.passages(["flea"])
    sent = [Passage("a", stored.text), Passage("flea", in_index=True)]
    ranking = rank_once({"number": ranker}, "q", sent, UNORDERED, index)
    assert len({item.score for item in ranking.ranked}) == 1
    (window,) = ranker.ranked
    (passage,) = window.passages
    assert passage.vector is not None


@pytest.mark.parametrize("documents", [[], ["one"], ["same"] * 12])
def test_short_lists_and_equal_texts_keep_their_order_by_id(rank, documents):
    ranking = rank(documents)
    assert [item.position for item in ranking.ranked] == list(range(len(documents)))
    assert len({item.score for item in ranking.ranked}) <= 1


def test_trace_has_the_positions_that_were_sent_and_all_doc_ids(rank):
    trace = rank(of_numbers([1, 3, 2, 3]), SINGLE).trace
    assert sorted(trace.input_order) == [0, 1, 2]
    assert [window.positions for window in trace.windows] == [trace.input_order]
    assert trace.truncated_doc_ids == ("d1", "d3")
    assert (trace.completeness, trace.reason) == (Completeness.FULL, "")


@pytest.mark.parametrize("options", [replace(UNORDERED, model="identity"), replace(SINGLE, window_size=2)])
def test_what_was_not_reranked_is_said_to_have_no_order(rank, options):
    candidates = [("a", "Deserts are dry."), ("b", "A flea lives a year."), ("c", "No word shared.")]
    ranking = rank(candidates, options)
    assert "; the list is unordered: what was not reranked is ordered by the words" in ranking.trace.reason
    scored = rank([Passage(doc_id, text, score=1.0) for doc_id, text in candidates], options)
    assert "unordered" not in scored.trace.reason


def test_texts_are_read_by_their_scores_if_all_have_one_and_else_by_the_words_of_the_query():
    texts = [" ", "Deserts are dry.", "A flea lives a year.", "How long does a flea live?"]
    scores = [(4.0, 3.0, 2.0, 1.0), (4.0, 3.0, math.nan, 1.0), (4.0, 3.0, None, 1.0)]
    lists = [
        finished(UnorderedList.of(QUERY, [Passage(text, text, score) for text, score in zip(texts, row, strict=True)]))
        for row in scores
    ]
    assert [[candidate.text for candidate in item.distinct] for item in lists] == [texts, *[[*texts[:0:-1], " "]] * 2]
    assert [item.has_scores for item in lists] == [True, False, False]


def test_equal_texts_count_with_the_best_of_their_scores():
    candidates = [Passage(str(i), text, score) for i, (text, score) in enumerate([("x", 1), ("y", 2), ("x", 3)])]
    distinct = finished(UnorderedList.of("q", candidates)).distinct
    assert [(text.doc_id, text.score) for text in distinct] == [("0", 3), ("1", 2)]


@given(st.lists(st.text("ab ", max_size=6), max_size=8), st.text("ab ", max_size=4))
def test_shared_words_are_those_of_the_query_and_rarer_ones_count_more(texts, query):
    for text, score in zip(texts, finished(shared_words(query, texts)), strict=True):
        words = set(query.split()) & set(text.split())
        frequencies = [sum(word in other.split() for other in texts) for word in words]
        assert score == pytest.approx(sum(math.log(1 + len(texts) / frequency) for frequency in frequencies))


@pytest.mark.parametrize(("weight", "is_named"), [(0.5, True), ("neural", True), (0.0, False), (None, False)])
def test_weight_that_was_asked_for_is_left_out_with_a_warning_without_scores(rank, weight, is_named):
    trace = rank(DOCUMENTS, replace(SINGLE, first_stage_weight=weight)).trace
    assert ("not every candidate has a finite score" in trace.model_warning) == is_named
    assert trace.first_stage_weight == 0.0
