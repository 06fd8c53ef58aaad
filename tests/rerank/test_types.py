"""Shared data types: permutations, comparison, strategy names and the check of rankings."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.errors import RankerFailure
from rerank.types import (
    Query,
    ScoreKind,
    Window,
    WindowRanking,
    WindowTrace,
    check_rankings,
    preranker_scores,
    with_title,
)
from tests.fakes import numbered_passages


@given(st.lists(st.sampled_from([-1e300, -1.0, -0.0, 0.0, 5e-324, 1.0, 1e300])))
def test_permutation_is_best_first_and_equal_scores_keep_their_order(scores):
    permutation = WindowRanking(tuple(scores)).permutation
    assert sorted(permutation) == list(range(len(scores)))
    for above, below in pairwise(permutation):
        assert scores[above] > scores[below] or (scores[above] == scores[below] and above < below)


@pytest.mark.parametrize("scores", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_wrong_number_of_scores_raises_with_both_numbers(scores):
    window = Window(Query("q"), tuple(numbered_passages([1, 2])))
    with pytest.raises(RankerFailure, match=f"returned {len(scores)} scores for a window of 2 passages; this is a bug"):
        check_rankings([None, WindowRanking(scores)], [window, window], "float32")


@pytest.mark.parametrize(
    ("text", "title", "joined"),
    [
        ("jumps", "Flea", "Flea jumps"),
        ("Flea jumps", "Flea", "Flea jumps"),
        ("Flea, an insect", "Flea", "Flea, an insect"),
        ("Fleabag is a play", "Flea", "Flea Fleabag is a play"),
        ("Flea", "Flea", "Flea"),
        ("jumps", "", "jumps"),
        ("", "Flea", "Flea "),
    ],
)
def test_title_comes_before_the_text_once(text, title, joined):
    assert with_title(text, title) == joined
    assert with_title(joined, title) == joined


def traced(model: str, kind: ScoreKind, **scores: float) -> WindowTrace:
    """A window with a score for each position, as p0=1.0."""
    positions = tuple(int(name[1:]) for name in scores)
    return WindowTrace(positions, (), 0, tuple(scores.values()), kind, model=model)


LAST = traced("last", ScoreKind.RANK, p1=2.0, p0=1.0)
ALONE, AMONG = ScoreKind.POINTWISE, ScoreKind.WINDOW_LOG_PROB


@pytest.mark.parametrize(
    ("windows", "found"),
    [
        ([], {}),
        ([LAST, LAST], {}),
        ([traced("ce", ALONE, p0=1.0, p1=2.0), LAST], {0: 1.0, 1: 2.0}),
        ([traced("ce", ALONE, p1=2.0), traced("ce", ALONE, p0=1.0), LAST, LAST], {0: 1.0, 1: 2.0}),
        ([traced("pe", AMONG, p2=3.0, p0=1.0), LAST], {2: 3.0, 0: 1.0}),
        ([traced("pe", AMONG, p1=2.0), traced("pe", AMONG, p0=1.0), LAST], {}),  # cannot be compared
        ([traced("generation", ScoreKind.RANK, p0=1.0, p1=2.0), LAST], {}),
        ([traced("first", ALONE, p0=9.0, p1=9.0), traced("ce", ALONE, p0=1.0), LAST], {0: 1.0}),
    ],
)
def test_scores_of_a_preranker_are_those_of_the_model_before_the_last_if_they_can_be_compared(windows, found):
    kind, scores = preranker_scores(windows)
    assert scores == found
    if found:
        assert kind is windows[-2].score_kind or kind is windows[0].score_kind
