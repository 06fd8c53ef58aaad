"""Scores between 0 and 1: monotone in the scores of the ranking, and with the meaning that the documentation states."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.errors import DeadlineExceeded, Overloaded
from rerank.ports.http.apis.scores import isotonic, relevance_scores, scored
from rerank.types import Completeness, Passage, RankedCandidate, Ranking, ScoreKind
from tests.traces import trace_of


def ranking(kind: ScoreKind, *scores: float, relevance: Mapping[int, float] | None = None, **trace: Any) -> Ranking:
    """A ranking with these scores; `relevance`: rank → relevance."""
    known = relevance or {}
    ranked = [
        RankedCandidate(Passage(str(rank), ""), rank, score, known.get(rank)) for rank, score in enumerate(scores)
    ]
    return Ranking(tuple(ranked), kind, trace_of(**trace))


@pytest.mark.parametrize(
    ("kind", "scores", "expected"),
    [
        (ScoreKind.WINDOW_LOG_PROB, [math.log(p) for p in (0.6, 0.3, 0.1)], [0.6, 0.3, 0.1]),
        (ScoreKind.WINDOW_LOG_PROB, [1e-7, -1.0], [1.0, 0.3679]),  # rounding above 0
        (ScoreKind.POINTWISE_PROBABILITY, [0.75, 0.0, -1e-45], [0.75, 0.0, 0.0]),
        (ScoreKind.POINTWISE, [math.log(3), 0.0], [0.75, 0.5]),
        (ScoreKind.RANK, [4, 3], [1.0, 0.75]),  # the first two of four
    ],
)
def test_scores_become_what_the_documentation_says(kind, scores, expected):
    found = relevance_scores(ranking(kind, *scores), 4)
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(found) <= 1
    assert min(found) >= 0


@pytest.mark.parametrize("kind", ScoreKind)
@pytest.mark.parametrize("relevance", [{0: 0.75}, {0: 0.75, 1: 0.0}])
def test_relevance_is_preferred_and_0_where_it_is_unknown_unless_the_request_asks_for_relative_scores(kind, relevance):
    relative = relevance_scores(ranking(kind, -0.5, -1.0), 2)
    answer = ranking(kind, -0.5, -1.0, relevance=relevance)
    assert relevance_scores(answer, 2) == [0.75, 0.0]
    assert relevance_scores(answer, 2, is_relative=True) == relative


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([0.3], [0.3]),
        ([0.9, 0.5, 0.1], [0.9, 0.5, 0.1]),
        ([0.2, 0.4, 0.1], [0.3, 0.3, 0.1]),
        ([0.5, 0.1, 0.2, 0.9], [0.5, 0.4, 0.4, 0.4]),
        ([0.0, 0.0, 1.0], [1 / 3] * 3),
    ],
)
def test_relevance_that_rises_along_the_order_becomes_its_mean(values, expected):
    assert isotonic(values) == pytest.approx(expected)
    answer = ranking(ScoreKind.WINDOW_SCORE, *range(len(values), 0, -1), relevance=dict(enumerate(values)))
    assert relevance_scores(answer, len(values)) == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.floats(0, 1), max_size=30))
def test_client_that_sorts_by_the_score_gets_the_order(values):
    """Before, sorting DL 2019's lists by relevance_score lost .01 of nDCG@10."""
    answer = ranking(ScoreKind.WINDOW_SCORE, *range(len(values), 0, -1), relevance=dict(enumerate(values)))
    scores = relevance_scores(answer, len(values))
    assert all(0 <= below < above <= 1 or above == 0 for above, below in pairwise(np.float32(scores)))
    assert sum(scores) == pytest.approx(sum(values), abs=1e-4)


@pytest.mark.parametrize(
    "work",
    [
        {"completeness": Completeness.NONE, "failure": Overloaded},
        {"completeness": Completeness.PARTIAL, "failure": DeadlineExceeded},
        {"completeness": Completeness.NONE},
    ],
    ids=["fallback", "partial", "first stage"],
)
@pytest.mark.parametrize("is_relative", [False, True])
def test_place_that_no_model_gave_is_not_a_score(work, is_relative):
    """A threshold on the score must not take them for certain."""
    answer = ranking(ScoreKind.RANK, 3, 2, 1, **work)
    assert relevance_scores(answer, 3, is_relative) == [0, 0, 0]
    assert [item.ranked for item in scored(answer, 3, is_relative)] == [False, False, False]
    answer = ranking(ScoreKind.RANK, 3, 2, 1, **work, relevance={1: 0.6})  # read before the failure
    assert relevance_scores(answer, 3, is_relative) == [0, 0.6, 0]
    assert [item.ranked for item in scored(answer, 3, is_relative)] == [False, None, False]
