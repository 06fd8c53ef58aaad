"""What a request will take, guessed from its schedule and from the windows seen so far."""

from __future__ import annotations

import numpy as np
import pytest

from rerank.engine.estimate import PassageTokens, WorkEstimate, prepare_tokens
from rerank.engine.strategies import Cascade, Single, Sliding, Strategy
from rerank.engine.throughput import Lane, Stage
from rerank.types import Passage
from tests.fakes import numbered_passages

RANK = Lane(Stage.RANK, "model")
PREPARE = Lane(Stage.PREPARE, "model")


def estimate(n: int, strategy: Strategy = Sliding(20, 10), tokens_a_passage: float = 5.0) -> WorkEstimate:  # noqa: B008
    return WorkEstimate(strategy, "model", numbered_passages(range(n)), lambda _: tokens_a_passage)


@pytest.mark.parametrize(("n", "tokens"), [(0, 0), (1, 1 * 5), (20, 20 * 5), (21, 2 * 20 * 5), (100, 9 * 20 * 5)])
def test_before_the_first_window_the_models_average_counts(n: int, tokens: int) -> None:
    assert estimate(n).left() == {RANK: tokens, PREPARE: n + 1}


def test_windows_that_are_next_and_their_likes_are_left() -> None:
    own = estimate(100)
    assert own.left_with("model", [300])[RANK] == 300 + 8 * 300
    assert own.left_with("model", [100])[RANK] == 100 + 7 * 200


def test_windows_side_by_side_are_all_left() -> None:
    assert estimate(100).left_with("model", [300, 100])[RANK] == 400 + 7 * 200


def test_middle_of_the_bounds_is_expected_and_never_less_than_what_is_next() -> None:
    own = estimate(100, Sliding(20, 10, early_stop=True))  # 2 to 9 windows
    assert own.left()[RANK] == 5.5 * 100
    for _ in range(8):
        own.left_with("model", [100])
    assert own.left_with("model", [100])[RANK] == 100


def test_window_without_tokens_is_work_too() -> None:
    assert estimate(100).left_with("model", [0, 0])[RANK] == 2


def test_each_model_of_a_cascade_has_its_part() -> None:
    own = estimate(100, Cascade(10, "cheap", Single(50)))
    cheap = Lane(Stage.RANK, "cheap")
    assert own.left() == {cheap: 250, RANK: 50, Lane(Stage.PREPARE, "cheap"): 101, PREPARE: 101}
    assert own.left_with("cheap", [400]) == own.left() | {cheap: 400}


def test_what_is_prepared_is_left_no_more() -> None:
    own = estimate(5)
    own.prepared("model")
    assert own.left()[PREPARE] == 0


def test_passages_with_a_vector_are_no_work_to_prepare() -> None:
    vector = np.ones(2, dtype=np.float32)
    assert prepare_tokens([Passage("a", "", vector), Passage("b", "")]) == 2
    assert prepare_tokens([]) == 1


def test_average_forgets_slowly_and_knows_models_apart() -> None:
    average = PassageTokens()
    assert average.average("model") == 1.0
    average.observe("model", [100, 300], [10, 10])
    assert average.average("model") == 20.0
    assert average.average("other") == 1.0
    for _ in range(100):
        average.observe("model", [50], [10])
    assert average.average("model") == pytest.approx(5.0, rel=0.01)


def test_windows_of_no_passages_leave_the_average_alone() -> None:
    average = PassageTokens()
    average.observe("model", [0], [0])
    assert average.average("model") == 1.0
