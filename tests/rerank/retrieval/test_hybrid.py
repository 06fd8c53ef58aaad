"""Fusion of BM25 and dense results: values computed by hand, and limits."""

from collections.abc import Sequence
from functools import partial
from math import sqrt

import pytest

from rerank.retrieval.hybrid import HybridRetriever, best, reciprocal_rank, z_score_sum, z_scores
from rerank.retrieval.store import ScoredRow
from rerank.types import Query

WEIGHTS = (0.3, 1.0)
each_fusion = pytest.mark.parametrize("fusion", [reciprocal_rank, partial(z_score_sum, weights=WEIGHTS)])


#: Rows of the passages with these names.
ROWS = {name: row for row, name in enumerate(["both", *"abcde"])}


class FixedRetriever:
    """A retriever with fixed results: query text → ranked list."""

    def __init__(self, runs: dict[str, dict[str, float]]) -> None:
        self._runs = runs

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredRow]]:
        runs = [[ScoredRow(ROWS[name], score) for name, score in self._runs[q.text].items()] for q in queries]
        return [hits[:depth] for hits in runs]


def fused(hits: Sequence[ScoredRow]) -> dict[str, float]:
    """The scores of the passages, in their order."""
    return {name: hit.score for hit in hits for name, row in ROWS.items() if row == hit.row}


def test_reciprocal_rank_equals_the_formula_and_ignores_scores():
    for scores in ((9.0, 8.0, 7.0), (0.2, 0.2, 0.2)):
        fused = reciprocal_rank([dict(zip("abc", scores, strict=True)), {"b": 0.9, "d": 0.8}])
        assert fused == pytest.approx({"a": 1 / 61, "b": 1 / 62 + 1 / 61, "c": 1 / 63, "d": 1 / 62})


@pytest.mark.parametrize(("scale", "shift"), [(1, 0), (100, -7)])
def test_z_score_sum_equals_the_formula_at_any_scale(scale, shift):
    """BM25: mean 2, deviation √⅔, so ±√1.5 and 0. Dense: mean 8, deviation 2, so 1 and -1. Weights 0.3 and 1."""
    bm25 = {name: scale * score + shift for name, score in {"a": 3.0, "b": 2.0, "c": 1.0}.items()}
    expected = {"a": 0.3 * sqrt(1.5) - 1, "b": -1.0, "c": -0.3 * sqrt(1.5) - 1, "d": -0.3 * sqrt(1.5) + 1}
    assert z_score_sum([bm25, {"d": 10.0, "b": 6.0}], WEIGHTS) == pytest.approx(expected)


@pytest.mark.parametrize("score", [0.0, 0.1, -3.0, 1e9])
def test_equal_scores_and_a_single_one_have_z_score_0(score):
    assert z_score_sum([{"a": score}, {"b": 7.0}], WEIGHTS) == {"a": 0.0, "b": 0.0}
    equal, dense = {"a": score, "b": score, "c": score}, {"d": 10.0, "b": 6.0}
    assert z_score_sum([equal, dense], WEIGHTS) == pytest.approx({"a": -1.0, "b": -1.0, "c": -1.0, "d": 1.0})


@each_fusion
def test_empty_list_keeps_the_order_of_the_other(fusion):
    full = {"a": 3.0, "b": 2.0, "c": 1.0}
    for runs in ([full, {}], [{}, full]):
        assert list(best(fusion(runs), 10)) == ["a", "b", "c"]
    assert fusion([{}, {}]) == {}


@each_fusion
def test_hybrid_fuses_query_by_query(fusion):
    bm25 = {"x": {"a": 2.0, "b": 1.0}, "y": {"c": 1.0}, "z": {}}
    dense = {"x": {"b": 0.9, "d": 0.1}, "y": {}, "z": {}}
    retriever = HybridRetriever(FixedRetriever(bm25), FixedRetriever(dense), fusion)
    found = retriever.search([Query(text) for text in "xyz"], 10)
    assert list(map(fused, found)) == [best(fusion([bm25[text], dense[text]]), 10) for text in "xyz"]


@each_fusion
@pytest.mark.parametrize("depth", [1, 2, 3, 10])
def test_depth_limits_each_list_and_the_result(fusion, depth):
    bm25, dense = {"a": 3.0, "b": 2.0, "c": 1.0}, {"d": 3.0, "e": 2.0, "a": 1.0}
    retriever = HybridRetriever(FixedRetriever({"x": bm25}), FixedRetriever({"x": dense}), fusion)
    (found,) = retriever.search([Query("x")], depth)
    assert fused(found) == best(fusion([dict([*ranked.items()][:depth]) for ranked in (bm25, dense)]), depth)
    assert len(found) == min(depth, 5)


def test_z_scores_of_scores_whose_squares_are_not_finite():
    assert z_scores([1e200, 3e200]).tolist() == pytest.approx([-1.0, 1.0])
