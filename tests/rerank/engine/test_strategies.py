"""Strategies: final orders, windows and costs, compared with a slow sort that moves one candidate at a time."""

from collections.abc import Callable, Sequence

import pytest

from rerank.engine.strategies import Cost, Positions, Round, Single, Sliding, Strategy, TopDown, reordered, spans
from rerank.errors import InvalidRequest
from rerank.types import WindowRanking
from tests.fakes import drive_schedule, run_schedule
from tests.rerank.engine.schedules import (
    SINGLE,
    SLIDING,
    all_different,
    boundary_sizes,
    by,
    each_strategy,
    few_levels,
    inconsistent,
)


def insertion_sorted(positions: Sequence[int], relevance: Sequence[float]) -> list[int]:
    """Best first by insertion sort, which is stable."""
    order: list[int] = []
    for position in positions:
        place = len(order)
        while place > 0 and relevance[position] > relevance[order[place - 1]]:
            place -= 1
        order.insert(place, position)
    return order


def slow_sliding(strategy: Sliding, relevance: Sequence[float]) -> tuple[list[Positions], list[int]]:
    """Windows and final order of the sliding schedule: the start of the window moves up by the stride, down to 0."""
    order = list(range(len(relevance)))
    windows: list[Positions] = []
    tops = [*range(len(order) - strategy.window_size, 0, -strategy.stride), 0] if order else []
    for top in tops:
        window = order[top : top + strategy.window_size]
        windows.append(tuple(window))
        order = order[:top] + insertion_sorted(window, relevance) + order[top + len(window) :]
    return windows, order


def windows_of(rounds: Sequence[Round]) -> list[Positions]:
    return [window for round_ in rounds for window in round_.windows]


def rank_llm_spans(n: int, size: int = 20, stride: int = 10) -> list[tuple[int, int]]:
    """The spans of RankLLM's `sliding_windows`, written out."""
    found, end, start = list[tuple[int, int]](), n, n - size
    while end > 0 and start + stride != 0:
        start = max(start, 0)
        found.append((start, end))
        end, start = end - stride, start - stride
    return found


def test_windows_are_rank_llms_for_lists_of_tens_and_differ_for_73_lengths_up_to_100():
    """docs/guide/move.md says so: here the last window is whole."""
    differ = {n for n in range(1, 101) if list(spans(n, 20, 10)) != rank_llm_spans(n)}
    assert len(differ) == 73
    assert not differ & {20, 30, 40, 50, 60, 70, 80, 90, 100}


@pytest.mark.parametrize("strategy", SLIDING, ids=str)
@pytest.mark.parametrize("relevance_of", [few_levels, all_different])
def test_sliding_equals_the_slow_reference(strategy, relevance_of):
    for n in boundary_sizes(strategy):
        relevance = relevance_of(n)
        rounds, order = run_schedule(strategy, by(relevance), n)
        assert (windows_of(rounds), order) == slow_sliding(strategy, relevance), f"n = {n}"


@each_strategy
@pytest.mark.parametrize(
    "scores_of_n", [inconsistent, lambda n: by(all_different(n)), lambda n: by(range(n)), lambda n: by([0.0] * n)]
)
def test_every_round_keeps_to_size_cost_and_candidates_whatever_the_ranker_says(strategy, scores_of_n):
    """A round carries a full order or none, the first one the first stage's."""
    for n in boundary_sizes(strategy):
        rounds, order = run_schedule(strategy, scores_of_n(n), n)
        windows, cost, orders = windows_of(rounds), strategy.cost(n), [round_.order for round_ in rounds]
        assert sorted(order) == list(range(n)), f"n = {n}"
        assert cost.min_windows <= len(windows) <= cost.max_windows, f"n = {n}"
        assert all(1 <= len(window) <= strategy.window_size for window in windows), f"n = {n}"
        assert all(sorted(order) in ([], list(range(n))) for order in orders), f"n = {n}"
        assert not orders or orders[0] in ((), tuple(range(n))), f"n = {n}"


@pytest.mark.parametrize(
    "strategy",
    [
        *[Sliding(20, 10), Sliding(20, 7), Sliding(11, 1), Sliding(30, 20), Sliding(250, 10)],
        *[TopDown(20), TopDown(25), TopDown(250)],
    ],
    ids=str,
)
def test_perfect_ranker_finds_the_best_ten(strategy):
    """It does where consecutive windows share ten places, or half a window has ten."""
    for n in boundary_sizes(strategy):
        relevance = all_different(n)
        _, order = run_schedule(strategy, by(relevance), n)
        assert order[:10] == insertion_sorted(range(n), relevance)[:10], f"n = {n}"


@each_strategy
def test_tie_keeps_first_stage_order(strategy):
    """Over the full list, also for candidates that share no window."""
    for n in boundary_sizes(strategy):
        relevance = few_levels(n)
        _, order = run_schedule(strategy, by(relevance), n)
        for level in set(relevance):
            equals = [position for position in order if relevance[position] == level]
            assert equals == sorted(equals), f"n = {n}"


@pytest.mark.parametrize("strategy", [*SLIDING, *SINGLE], ids=str)
def test_cost_is_exact_for_schedules_that_do_not_depend_on_the_rankings(strategy):
    for n in boundary_sizes(strategy):
        assert strategy.cost(n).min_windows == strategy.cost(n).max_windows, f"n = {n}"


def test_bounds_of_top_down_are_reached():
    """The lower ones if the first stage is right, the upper ones if each comparison eliminates one candidate."""
    for strategy, n in [(TopDown(20), 100), (TopDown(20), 21), (TopDown(2), 50)]:
        best = windows_of(run_schedule(strategy, by(range(n, 0, -1)), n)[0])
        assert len(best) == strategy.cost(n).min_windows
    worst = windows_of(run_schedule(TopDown(2), by(range(50)), 50)[0])
    assert len(worst) == TopDown(2).cost(50).max_windows


def test_cost_of_hundred_candidates_is_that_of_the_papers():
    assert Sliding(20, 10).cost(100) == Cost(9, 9)
    assert TopDown(20).cost(100).min_windows == 6
    rounds = [len(run_schedule(strategy, by(range(100, 0, -1)), 100)[0]) for strategy in (Sliding(20, 10), TopDown(20))]
    assert rounds == [9, 2]


@pytest.mark.parametrize("stride", [-1, 0, 21])
def test_invalid_stride_is_rejected_with_both_numbers(stride):
    with pytest.raises(InvalidRequest, match=rf"stride {stride} is outside 1\.\.window_size; use at most 20") as caught:
        Sliding(20, stride)
    assert caught.value.field == "strategy.stride"
    assert caught.value.metadata == {"stride": str(stride), "window_size": "20"}


@pytest.mark.parametrize("window_size", [-1, 0, 1])
@pytest.mark.parametrize("strategy", [Single, lambda size: Sliding(size, 1), TopDown])
def test_window_of_less_than_two_passages_is_rejected(strategy, window_size):
    expected = f"window_size {window_size} is too small to order passages; use at least 2"
    with pytest.raises(InvalidRequest, match=expected) as caught:
        strategy(window_size)
    assert caught.value.field == "strategy.window_size"


@each_strategy
def test_schedule_begins_with_the_order_that_is_given(strategy):
    """As for the second step of a cascade: the same schedule, of other positions."""
    for n in boundary_sizes(strategy):
        given = list(range(n))[::-1]
        rounds, order = run_schedule(strategy, by(few_levels(n)), n)
        renamed, reversed_order = run_schedule(strategy, by(few_levels(n)[::-1]), n, given)
        assert [other.windows for other in renamed] == [
            tuple(tuple(given[position] for position in window) for window in round_.windows) for round_ in rounds
        ]
        assert reversed_order == [given[position] for position in order]


# --- rounds: which one is final, how much of it the answer needs, and the order known before it ---

#: Strategies whose last round is always final; top-down may end in a comparison with a pivot.
FLAGGED = [*SLIDING, *SINGLE]


@pytest.mark.parametrize("strategy", FLAGGED, ids=str)
def test_last_round_is_final_and_no_other(strategy):
    for n in boundary_sizes(strategy):
        flags = [round_.is_final for round_ in run_schedule(strategy, by(few_levels(n)), n)[0]]
        assert flags == [False] * (len(flags) - 1) + [True] * min(n, 1), f"n = {n}"


@each_strategy
def test_final_round_is_one_window_whose_order_heads_the_answer(strategy):
    for n in boundary_sizes(strategy):
        scores_of = by(few_levels(n))
        rounds, order = run_schedule(strategy, scores_of, n)
        for round_ in rounds:
            if round_.is_final:
                (window,) = round_.windows
                assert order[: len(window)] == reordered(window, WindowRanking(tuple(scores_of(window)))), f"n = {n}"
                assert round_ is rounds[-1], f"n = {n}"
                if round_.order:  # differs from the final order only in the window
                    assert round_.order[: len(window)] == window, f"n = {n}"
                    assert list(round_.order[len(window) :]) == order[len(window) :], f"n = {n}"


@each_strategy
@pytest.mark.parametrize("top_n", [1, 2, 5, 30])
def test_top_n_of_the_answer_needs_only_top_n_of_the_final_window(strategy, top_n):
    """A ranker that reverses everything after `top_n` there does not change the first `top_n`."""
    for n in boundary_sizes(strategy):
        scores_of = by(few_levels(n))
        order = run_schedule(strategy, scores_of, n)[1]
        assert order_with_top_n(strategy, scores_of, n, top_n)[:top_n] == order[:top_n], f"n = {n}"


def order_with_top_n(
    strategy: Strategy, scores_of: Callable[[Positions], Sequence[float]], n: int, top_n: int
) -> list[int]:
    """The final order if each window is ranked only up to its round's `top_n`, and reversed after that."""

    def rank(round_: Round) -> list[WindowRanking]:
        rankings = []
        for window in round_.windows:
            best = WindowRanking(tuple(scores_of(window))).permutation
            kept = (top_n if round_.is_final else 0) or len(window)
            order = [*best[:kept], *reversed(best[kept:])]
            rankings.append(WindowRanking(tuple(-float(order.index(place)) for place in range(len(window)))))
        return rankings

    return drive_schedule(strategy, rank, range(n))[1]
