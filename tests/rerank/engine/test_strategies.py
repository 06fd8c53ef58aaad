"""The schedules, for every n from 0 to 200, against a slow walk that moves one candidate at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from rerank.engine.strategies import (
    Cascade,
    Cost,
    Positions,
    Round,
    Single,
    Sliding,
    Strategy,
    TopDown,
    Tournament,
    reordered,
    spans,
)
from rerank.errors import InvalidRequest
from rerank.types import WindowRanking
from tests.fakes import walked

EVERY_N = range(201)
#: (window_size, stride): the default, the narrowest, no overlap, stride 1, nearly no overlap, wider than any n.
SHAPES = [(20, 10), (2, 1), (2, 2), (3, 2), (20, 20), (20, 7), (11, 1), (40, 39), (250, 10)]
SLIDING = [Sliding(size, stride) for size, stride in SHAPES]
SINGLE = [Single(size) for size in (2, 20, 200, 250)]

TOP_DOWN = [TopDown(size) for size in (2, 3, 10, 20, 250)]
TOURNAMENT = [Tournament(size) for size in (2, 3, 10, 20, 250)]
CASCADE = [Cascade(10, "cheap", Sliding(20, 10)), Cascade(20, "cheap", TopDown(20))]
EARLY_STOP = [Sliding(20, 10, early_stop=True), Sliding(2, 1, early_stop=True)]
PARALLEL = [*TOP_DOWN, *TOURNAMENT]

each_sliding = pytest.mark.parametrize("strategy", SLIDING, ids=str)
each_single = pytest.mark.parametrize("strategy", SINGLE, ids=str)
each_strategy = pytest.mark.parametrize("strategy", [*SLIDING, *SINGLE, *PARALLEL, *CASCADE, *EARLY_STOP], ids=str)
#: A tournament may part equals that never meet: one survives a round in which the other meets better ones.
each_stable = pytest.mark.parametrize("strategy", [*SLIDING, *SINGLE, *TOP_DOWN, *CASCADE, *EARLY_STOP], ids=str)


def few_levels(n: int) -> list[float]:
    """Relevance with many ties."""
    return [float(level) for level in random.Random(n).choices(range(4), k=n)]


def all_different(n: int) -> list[float]:
    return [float(place) for place in random.Random(n).sample(range(n), k=n)]


def by(relevance: Sequence[float]) -> Callable[[Positions], list[float]]:
    """Scores a window as a perfect ranker would."""
    return lambda window: [relevance[position] for position in window]


def moody(seed: int) -> Callable[[Positions], list[float]]:
    """Scores a window differently each time."""
    moods = random.Random(seed)
    return lambda window: [moods.random() for _ in window]


def slowly_ordered(positions: Sequence[int], relevance: Sequence[float]) -> list[int]:
    """Each candidate climbs past those that are worse, and stops below an equal one."""
    order: list[int] = []
    for position in positions:
        place = len(order)
        while place > 0 and relevance[position] > relevance[order[place - 1]]:
            place -= 1
        order.insert(place, position)
    return order


def slow_sliding(strategy: Sliding, relevance: Sequence[float]) -> tuple[list[Positions], list[int]]:
    """A window's upper edge moves up by the stride, and the last one stands at the top."""
    order = list(range(len(relevance)))
    windows: list[Positions] = []
    tops = [*range(len(order) - strategy.window_size, 0, -strategy.stride), 0] if order else []
    for top in tops:
        window = order[top : top + strategy.window_size]
        windows.append(tuple(window))
        order = order[:top] + slowly_ordered(window, relevance) + order[top + len(window) :]
    return windows, order


def rank_llm_spans(n: int, size: int, stride: int) -> Iterator[tuple[int, int]]:
    """The walk that RankLLM publishes."""
    end, start = n, n - size
    while end > 0 and start + stride != 0:
        start = max(start, 0)
        yield start, end
        end -= stride
        start -= stride


def rounds_of(strategy: Strategy, scores_of: Callable[[Positions], Sequence[float]], n: int) -> list[Round]:
    """The rounds that a strategy asks for when `scores_of` ranks each window."""
    rounds: list[Round] = []
    schedule = strategy.schedule(n)
    try:
        rounds.append(next(schedule))
        while True:
            rankings = [WindowRanking(tuple(scores_of(window))) for window in rounds[-1].windows]
            rounds.append(schedule.send(rankings))
    except StopIteration:
        return rounds


@each_sliding
@pytest.mark.parametrize("relevance_of", [few_levels, all_different])
def test_sliding_equals_the_slow_walk(strategy: Sliding, relevance_of: Callable[[int], list[float]]) -> None:
    for n in EVERY_N:
        relevance = relevance_of(n)
        assert walked(strategy, by(relevance), n) == slow_sliding(strategy, relevance), f"n = {n}"


@each_single
def test_single_orders_the_first_window_and_leaves_the_rest(strategy: Single) -> None:
    for n in EVERY_N:
        relevance = few_levels(n)
        read = list(range(min(n, strategy.window_size)))
        unread = list(range(len(read), n))
        windows = [tuple(read)] if read else []
        assert walked(strategy, by(relevance), n) == (windows, slowly_ordered(read, relevance) + unread), f"n = {n}"


@each_strategy
def test_order_is_a_permutation_even_when_the_ranker_contradicts_itself(strategy: Strategy) -> None:
    for n in EVERY_N:
        _, order = walked(strategy, moody(n), n)
        assert sorted(order) == list(range(n)), f"n = {n}"


@pytest.mark.parametrize(
    "strategy",
    [
        *[Sliding(20, 10), Sliding(20, 7), Sliding(11, 1), Sliding(30, 20), Sliding(250, 10)],
        *[TopDown(20), TopDown(25), TopDown(250), Tournament(20), Tournament(25), Tournament(250)],
        *CASCADE,
    ],
    ids=str,
)
def test_perfect_ranker_finds_the_best_ten(strategy: Strategy) -> None:
    """Ten climb all the way where consecutive windows share ten places, or half a window has ten."""
    for n in EVERY_N:
        relevance = all_different(n)
        _, order = walked(strategy, by(relevance), n)
        assert order[:10] == slowly_ordered(range(n), relevance)[:10], f"n = {n}"


@each_strategy
@pytest.mark.parametrize(
    "scores_of",
    [lambda window: [0.0] * len(window), lambda window: [-float(place) for place in range(len(window))]],
    ids=["all equal", "in the order in which they were read"],
)
def test_scores_that_prefer_nothing_move_nothing(
    strategy: Strategy, scores_of: Callable[[Positions], list[float]]
) -> None:
    for n in EVERY_N:
        assert walked(strategy, scores_of, n)[1] == list(range(n)), f"n = {n}"


@each_stable
def test_tie_keeps_first_stage_order(strategy: Strategy) -> None:
    """Over the whole list, also for candidates that no window shows together."""
    for n in EVERY_N:
        relevance = few_levels(n)
        _, order = walked(strategy, by(relevance), n)
        for level in set(relevance):
            equals = [position for position in order if relevance[position] == level]
            assert equals == sorted(equals), f"n = {n}"


@each_strategy
@pytest.mark.parametrize(
    "scores_of_n", [moody, lambda n: by(all_different(n)), lambda n: by(range(n)), lambda n: by([0.0] * n)]
)
def test_strategy_takes_what_it_declared(
    strategy: Strategy, scores_of_n: Callable[[int], Callable[[Positions], Sequence[float]]]
) -> None:
    for n in EVERY_N if strategy.window_size > 3 else range(61):  # narrow windows take n² rounds at worst
        cost = strategy.cost(n)
        windows, rounds = 0, 0
        for round_ in rounds_of(strategy, scores_of_n(n), n):
            windows, rounds = windows + len(round_.windows), rounds + 1
        assert cost.min_windows <= windows <= cost.max_windows, f"n = {n}"
        assert cost.min_rounds <= rounds <= cost.max_rounds, f"n = {n}"


@pytest.mark.parametrize("strategy", [*SLIDING, *SINGLE, *TOURNAMENT], ids=str)
def test_cost_is_exact_where_nothing_depends_on_the_rankings(strategy: Strategy) -> None:
    for n in EVERY_N:
        cost = strategy.cost(n)
        assert (cost.min_windows, cost.min_rounds) == (cost.max_windows, cost.max_rounds)


def test_bounds_of_top_down_are_reached() -> None:
    """The fewest when the first stage was right, the most when each comparison leaves one."""
    for strategy, n in [(TopDown(20), 100), (TopDown(20), 21), (TopDown(2), 50)]:
        best = [len(round_.windows) for round_ in rounds_of(strategy, by(range(n, 0, -1)), n)]
        assert (sum(best), len(best)) == (strategy.cost(n).min_windows, strategy.cost(n).min_rounds)
    worst = [len(round_.windows) for round_ in rounds_of(TopDown(2), by(range(50)), 50)]
    assert (sum(worst), len(worst)) == (TopDown(2).cost(50).max_windows, TopDown(2).cost(50).max_rounds)


def test_hundred_candidates_cost_what_the_papers_say() -> None:
    assert Sliding(20, 10).cost(100) == Cost.exactly(9, 9)
    assert (TopDown(20).cost(100).min_windows, TopDown(20).cost(100).min_rounds) == (6, 2)
    assert Tournament(20).cost(100) == Cost.exactly(11, 4)


def test_early_stop_reads_two_windows_of_a_good_list_and_all_of_a_bad_one() -> None:
    strategy = Sliding(20, 10, early_stop=True)
    assert len(walked(strategy, by(range(100, 0, -1)), 100)[0]) == 2
    assert len(walked(strategy, by(range(100)), 100)[0]) == 9


def test_only_the_last_round_of_a_cascade_is_for_the_requests_model() -> None:
    models = [round_.model for round_ in rounds_of(Cascade(10, "cheap", Sliding(20, 10)), by(range(50)), 50)]
    assert models == ["cheap"] * 4 + [""]


@each_strategy
def test_window_is_never_wider_than_it_says(strategy: Strategy) -> None:
    for n in EVERY_N:
        windows, _ = walked(strategy, by(few_levels(n)), n)
        widest = max(strategy.window_size, strategy.first.window_size if isinstance(strategy, Cascade) else 0)
        assert all(1 <= len(window) <= widest for window in windows), f"n = {n}"


@pytest.mark.parametrize(("size", "stride"), SHAPES)
def test_spans_agree_with_rank_llm_where_full_windows_fit(size: int, stride: int) -> None:
    fitting = [n for n in EVERY_N if n >= size and (n - size) % stride == 0]
    for n in fitting:
        assert list(spans(n, size, stride)) == list(rank_llm_spans(n, size, stride)), f"n = {n}"


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (0, []),
        (1, [(0, 1)]),
        (10, [(0, 10)]),
        (20, [(0, 20)]),
        (21, [(1, 21), (0, 20)]),
        (25, [(5, 25), (0, 20)]),
        (30, [(10, 30), (0, 20)]),
        (31, [(11, 31), (1, 21), (0, 20)]),
    ],
)
def test_spans_of_twenty_by_ten(n: int, expected: list[tuple[int, int]]) -> None:
    assert list(spans(n, 20, 10)) == expected


def test_last_span_is_full_where_rank_llm_narrows_it() -> None:
    assert list(rank_llm_spans(25, 20, 10))[-1] == (0, 15)
    assert list(spans(25, 20, 10))[-1] == (0, 20)


@pytest.mark.parametrize("stride", [-1, 0, 21])
def test_impossible_stride_is_refused_with_both_numbers(stride: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"stride {stride} is outside 1\.\.window_size; use at most 20") as caught:
        Sliding(20, stride)
    assert caught.value.field == "strategy.stride"
    assert caught.value.metadata == {"stride": str(stride), "window_size": "20"}


@pytest.mark.parametrize("window_size", [-1, 0, 1])
@pytest.mark.parametrize("strategy", [Single, lambda size: Sliding(size, 1), TopDown, Tournament])
def test_window_that_cannot_order_is_refused(strategy: Callable[[int], Strategy], window_size: int) -> None:
    expected = f"window_size {window_size} cannot order anything; use at least 2"
    with pytest.raises(InvalidRequest, match=expected) as caught:
        strategy(window_size)
    assert caught.value.field == "strategy.window_size"


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (Single(7), "single(7)"),
        (Sliding(20, 10), "sliding(20/10)"),
        (Sliding(20, 10, early_stop=True), "sliding(20/10, early stop)"),
        (TopDown(20), "top-down(20)"),
        (Tournament(20), "tournament(20)"),
        (Cascade(20, "pe-rank", Sliding(20, 10)), "cascade(pe-rank: sliding(20/10) > 20)"),
    ],
)
def test_strategy_says_its_numbers(strategy: Strategy, text: str) -> None:
    assert str(strategy) == text


#: Those that may end in a comparison with a pivot, which flags no round.
FLAGGED = [*SLIDING, *SINGLE, *TOURNAMENT, *CASCADE]


@pytest.mark.parametrize("strategy", FLAGGED, ids=str)
def test_last_round_is_final_and_no_other(strategy: Strategy) -> None:
    for n in EVERY_N:
        flags = [round_.is_final for round_ in rounds_of(strategy, by(few_levels(n)), n)]
        assert flags == [False] * (len(flags) - 1) + [True] * min(n, 1), f"n = {n}"


@each_strategy
def test_final_round_is_one_window_whose_order_heads_the_answer(strategy: Strategy) -> None:
    for n in EVERY_N:
        scores_of = by(few_levels(n))
        rounds = rounds_of(strategy, scores_of, n)
        order = walked(strategy, scores_of, n)[1]
        for round_ in rounds:
            if round_.is_final:
                (window,) = round_.windows
                assert order[: len(window)] == reordered(window, WindowRanking(tuple(scores_of(window)))), f"n = {n}"
                assert round_ is rounds[-1], f"n = {n}"


@each_strategy
@pytest.mark.parametrize("top_n", [1, 2, 5, 30])
def test_first_places_need_no_more_of_a_final_window_than_its_first_places(strategy: Strategy, top_n: int) -> None:
    """A ranker that stops after `top_n` there, and turns the rest around, changes none of the first `top_n`."""
    for n in EVERY_N[:: 1 if strategy.window_size > 3 else 10]:
        scores_of = by(few_levels(n))
        order = walked(strategy, scores_of, n)[1]
        assert stopped(strategy, scores_of, n, top_n)[:top_n] == order[:top_n], f"n = {n}"


def stopped(strategy: Strategy, scores_of: Callable[[Positions], Sequence[float]], n: int, top_n: int) -> list[int]:
    """The order when each window is ranked as far as its round says, and turned around behind."""
    schedule = strategy.schedule(n)
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
def test_only_a_final_window_is_cut_and_only_where_something_is_left(is_final: bool, top_n: int, expected: int) -> None:
    assert Round(((4, 5, 6),), is_final=is_final).top_n((4, 5, 6), top_n) == expected


@each_strategy
def test_every_round_carries_a_whole_order_or_none(strategy: Strategy) -> None:
    for n in EVERY_N:
        for round_ in rounds_of(strategy, moody(n), n):
            assert sorted(round_.order) in ([], list(range(n))), f"n = {n}"


@each_strategy
def test_first_round_carries_the_order_of_the_first_stage(strategy: Strategy) -> None:
    for n in EVERY_N:
        for first in rounds_of(strategy, moody(n), n)[:1]:
            assert first.order in ((), tuple(range(n))), f"n = {n}"


@each_strategy
def test_order_before_a_final_round_differs_from_the_answer_in_its_window_only(strategy: Strategy) -> None:
    for n in EVERY_N:
        scores_of = by(few_levels(n))
        order = walked(strategy, scores_of, n)[1]
        for round_ in rounds_of(strategy, scores_of, n):
            if round_.is_final and round_.order:
                (window,) = round_.windows
                assert round_.order[: len(window)] == window, f"n = {n}"
                assert list(round_.order[len(window) :]) == order[len(window) :], f"n = {n}"


def test_order_so_far_of_a_sliding_walk_holds_what_its_windows_found() -> None:
    """The best candidate comes last in the list and climbs by a stride a window."""
    relevance = [*range(30, 0, -1), 99]
    rounds = rounds_of(Sliding(20, 10), by(relevance), 31)
    assert [round_.order.index(30) for round_ in rounds] == [30, 11, 1]


@pytest.mark.parametrize("strategy", [TopDown(20), Tournament(20)], ids=str)
def test_order_so_far_of_a_parallel_walk_holds_what_its_rounds_found(strategy: Strategy) -> None:
    """With a perfect ranker no round makes the ten best places worse."""
    relevance = all_different(100)
    rounds = rounds_of(strategy, by(relevance), 100)
    found = [sum(relevance[position] for position in round_.order[:10]) for round_ in rounds]
    assert found == sorted(found)
    assert found[-1] > found[0]
