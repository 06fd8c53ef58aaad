"""WorkEstimate: the remaining work of a request, from its schedule and from its windows so far."""

from __future__ import annotations

import numpy as np
import pytest

from rerank.engine.admission import ModelStage, PassageTokens, Stage, WorkEstimate, prepare_tokens
from rerank.engine.strategies import Cascade, Interpolated, Single, Sliding, Strategy
from rerank.types import Passage, Query
from tests.fakes import numbered_passages

RANK = ModelStage(Stage.RANK, "model")
PREPARE = ModelStage(Stage.PREPARE, "model")


def estimate(n: int, strategy: Strategy = Sliding(20, 10), tokens_per_passage: float = 5.0) -> WorkEstimate:  # noqa: B008
    """The texts to embed are the query and passages "relevance 0", …."""
    return WorkEstimate(strategy, "model", Query("q"), numbered_passages(range(n)), lambda _: tokens_per_passage)


@pytest.mark.parametrize(("n", "tokens"), [(0, 0), (1, 1 * 5), (20, 20 * 5), (21, 2 * 20 * 5), (100, 9 * 20 * 5)])
def test_estimate_uses_the_models_average_before_the_first_window(n: int, tokens: int) -> None:
    assert estimate(n).remaining() == {RANK: tokens, PREPARE: prepare_tokens(Query("q"), numbered_passages(range(n)))}


def test_estimate_extrapolates_from_the_windows_encoded_so_far() -> None:
    estimated = estimate(100)
    assert estimated.add_round("model", [300])[RANK] == 300 + 8 * 300
    assert estimated.add_round("model", [100])[RANK] == 100 + 7 * 200


def test_all_windows_of_a_round_remain() -> None:
    assert estimate(100).add_round("model", [300, 100])[RANK] == 400 + 7 * 200


def test_estimate_is_the_middle_of_the_bounds_and_at_least_the_next_round() -> None:
    estimated = estimate(100, Sliding(20, 10, early_stop=True))  # 2 to 9 windows
    assert estimated.remaining()[RANK] == 5.5 * 100
    for _ in range(8):
        estimated.add_round("model", [100])
    assert estimated.add_round("model", [100])[RANK] == 100


def test_window_without_tokens_counts_as_one_token() -> None:
    assert estimate(100).add_round("model", [0, 0])[RANK] == 2


def test_cascade_is_estimated_per_model() -> None:
    estimated = estimate(100, Cascade(10, "cheap", Single(50)))
    cheap = ModelStage(Stage.RANK, "cheap")
    prepare = prepare_tokens(Query("q"), numbered_passages(range(100)))
    expected = {cheap: 250, RANK: 50, ModelStage(Stage.PREPARE, "cheap"): prepare, PREPARE: prepare}
    assert estimated.remaining() == expected
    assert estimated.add_round("cheap", [400]) == estimated.remaining() | {cheap: 400}


def test_interpolation_does_not_change_the_estimate() -> None:
    for strategy in (Sliding(20, 10), Cascade(10, "cheap", Single(50))):
        assert estimate(100, Interpolated(strategy, 0.5)).remaining() == estimate(100, strategy).remaining()


def test_prepared_passages_no_longer_count() -> None:
    estimated = estimate(5)
    estimated.mark_prepared("model")
    assert estimated.remaining()[PREPARE] == 0


def test_passages_with_a_vector_need_no_preparation() -> None:
    vector = np.ones(2, dtype=np.float32)
    assert prepare_tokens(Query("q"), [Passage("a", "text", vector), Passage("b", "text")]) == 2 + 3
    assert prepare_tokens(Query(""), []) == 2


def test_preparation_is_counted_by_the_length_of_the_texts() -> None:
    """Otherwise a request with long passages makes one with short passages look slow."""
    short, long = ([Passage("a", "x" * length)] * 100 for length in (20, 2000))
    assert prepare_tokens(Query("q" * 40), short) == 12 + 100 * 7
    assert prepare_tokens(Query("q" * 40), long) == 12 + 100 * 502


def test_average_decays_and_is_kept_per_model() -> None:
    average = PassageTokens()
    assert average.average("model") == 1.0
    average.observe("model", [100, 300], [10, 10])
    assert average.average("model") == 20.0
    assert average.average("other") == 1.0
    for _ in range(100):
        average.observe("model", [50], [10])
    assert average.average("model") == pytest.approx(5.0, rel=0.01)


def test_windows_without_passages_do_not_change_the_average() -> None:
    average = PassageTokens()
    average.observe("model", [0], [0])
    assert average.average("model") == 1.0
