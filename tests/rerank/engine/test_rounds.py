"""Rounds of a schedule: which one is final, how much of it the answer needs, and the order known before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rerank.engine.strategies import Positions, Round, Sliding, Strategy, TopDown, Tournament, reordered
from rerank.types import WindowRanking
from tests.fakes import run_schedule
from tests.rerank.engine.schedules import (
    SINGLE,
    SLIDING,
    TOURNAMENT,
    all_different,
    boundary_sizes,
    by,
    each_strategy,
    few_levels,
    inconsistent,
)

#: Strategies whose last round is always final; top-down may end in a comparison with a pivot.
FLAGGED = [*SLIDING, *SINGLE, *TOURNAMENT]


@pytest.mark.parametrize("strategy", FLAGGED, ids=str)
def test_last_round_is_final_and_no_other(strategy: Strategy) -> None:
    for n in boundary_sizes(strategy):
        flags = [round_.is_final for round_ in run_schedule(strategy, by(few_levels(n)), n)[0]]
        assert flags == [False] * (len(flags) - 1) + [True] * min(n, 1), f"n = {n}"


def test_top_down_of_one_window_is_final() -> None:
    assert [round_.is_final for round_ in run_schedule(TopDown(20), by(few_levels(20)), 20)[0]] == [True]


@each_strategy
def test_final_round_is_one_window_whose_order_heads_the_answer(strategy: Strategy) -> None:
    for n in boundary_sizes(strategy):
        scores_of = by(few_levels(n))
        rounds, order = run_schedule(strategy, scores_of, n)
        for round_ in rounds:
            if round_.is_final:
                (window,) = round_.windows
                assert order[: len(window)] == reordered(window, WindowRanking(tuple(scores_of(window)))), f"n = {n}"
                assert round_ is rounds[-1], f"n = {n}"


@each_strategy
@pytest.mark.parametrize("top_n", [1, 2, 5, 30])
def test_top_n_of_the_answer_needs_only_top_n_of_the_final_window(strategy: Strategy, top_n: int) -> None:
    """A ranker that reverses everything after `top_n` there does not change the first `top_n`."""
    for n in boundary_sizes(strategy):
        scores_of = by(few_levels(n))
        order = run_schedule(strategy, scores_of, n)[1]
        assert order_with_top_n(strategy, scores_of, n, top_n)[:top_n] == order[:top_n], f"n = {n}"


def order_with_top_n(
    strategy: Strategy, scores_of: Callable[[Positions], Sequence[float]], n: int, top_n: int
) -> list[int]:
    """The final order if each window is ranked only up to its round's `top_n`, and reversed after that."""
    schedule = strategy.schedule(range(n))
    try:
        round_ = next(schedule)
        while True:
            rankings = []
            for window in round_.windows:
                best = WindowRanking(tuple(scores_of(window))).permutation
                kept = round_.top_n(window, top_n) or len(window)
                order = [*best[:kept], *reversed(best[kept:])]
                rankings.append(WindowRanking(tuple(-float(order.index(place)) for place in range(len(window)))))
            round_ = schedule.send(rankings)
    except StopIteration as finished:
        result: list[int] = finished.value
        return result


@pytest.mark.parametrize(
    ("is_final", "top_n", "expected"), [(True, 2, 2), (True, 0, 0), (True, 3, 0), (True, 9, 0), (False, 2, 0)]
)
def test_only_a_final_window_larger_than_top_n_is_limited(is_final: bool, top_n: int, expected: int) -> None:
    assert Round(((4, 5, 6),), is_final=is_final).top_n((4, 5, 6), top_n) == expected


@each_strategy
def test_every_round_carries_a_full_order_or_none_and_the_first_one_that_of_the_first_stage(strategy: Strategy) -> None:
    for n in boundary_sizes(strategy):
        orders = [round_.order for round_ in run_schedule(strategy, inconsistent(n), n)[0]]
        assert all(sorted(order) in ([], list(range(n))) for order in orders), f"n = {n}"
        assert not orders or orders[0] in ((), tuple(range(n))), f"n = {n}"


@each_strategy
def test_order_before_a_final_round_differs_from_the_final_order_only_in_its_window(strategy: Strategy) -> None:
    for n in boundary_sizes(strategy):
        scores_of = by(few_levels(n))
        rounds, order = run_schedule(strategy, scores_of, n)
        for round_ in rounds:
            if round_.is_final and round_.order:
                (window,) = round_.windows
                assert round_.order[: len(window)] == window, f"n = {n}"
                assert list(round_.order[len(window) :]) == order[len(window) :], f"n = {n}"


def test_order_of_a_sliding_round_includes_the_windows_before() -> None:
    """The best candidate is the last in the list and rises by a stride per window."""
    relevance = [*range(30, 0, -1), 99]
    rounds = run_schedule(Sliding(20, 10), by(relevance), 31)[0]
    assert [round_.order.index(30) for round_ in rounds] == [30, 11, 1]


@pytest.mark.parametrize("strategy", [TopDown(20), Tournament(20)], ids=str)
def test_order_of_a_parallel_round_includes_the_rounds_before(strategy: Strategy) -> None:
    """With a perfect ranker, the first ten positions get better from round to round."""
    relevance = all_different(100)
    rounds = run_schedule(strategy, by(relevance), 100)[0]
    found = [sum(relevance[position] for position in round_.order[:10]) for round_ in rounds]
    assert found == sorted(found)
    assert found[-1] > found[0]
