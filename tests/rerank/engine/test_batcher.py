"""The batcher loses nothing, keeps to its budget, and takes the most urgent first."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.engine.batcher import Batcher, Entry
from rerank.engine.throughput import Lane, Stage, Task, Throughput

#: What waits, as (model, tokens); payloads are numbered in the order of arrival.
Arrivals = list[tuple[str, int]]
BUDGET = 100
AGE_FACTOR = 0.1

arrivals = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 150)), max_size=40)


def lane(model: str) -> Lane:
    return Lane(Stage.RANK, model)


def measured_pace() -> Throughput:
    """100 tokens a second, for every model."""
    throughput = Throughput(AGE_FACTOR)
    for model in "abc":
        throughput.observe(lane(model), 1, 1.0, 0.0)
        throughput.observe(lane(model), 100, 1.0, 0.0)
    return throughput


def entry(
    number: int,
    tokens: int,
    left: float | None = None,
    model: str = "a",
    arrived_s: float = 0.0,
    deadline_s: float = math.inf,
    cancelled: Set[int] = frozenset(),
) -> Entry[int]:
    """A window of a request of which `left` tokens remain; without it, of this window only."""
    task = Task(arrived_s, deadline_s, {lane(model): tokens if left is None else left})
    return Entry(number, task, lane(model), tokens, partial(cancelled.__contains__, number))


def entries_for(rows: Arrivals, cancelled: Set[int] = frozenset()) -> list[Entry[int]]:
    """One entry a row; it is cancelled while its number is in `cancelled`."""
    return [entry(number, tokens, model=model, cancelled=cancelled) for number, (model, tokens) in enumerate(rows)]


def filled(entries: Sequence[Entry[int]], throughput: Throughput | None = None) -> Batcher[int]:
    batcher: Batcher[int] = Batcher(throughput or measured_pace(), BUDGET)
    for one in entries:
        batcher.add(one)
    return batcher


def drained(batcher: Batcher[int], now_s: float = 0.0) -> list[list[Entry[int]]]:
    """All batches until nothing waits."""
    batches = []
    while batch := batcher.next_batch(now_s):
        batches.append(batch)
    return batches


def payloads(entries: Sequence[Entry[int]]) -> list[int]:
    return [one.payload for one in entries]


def order(batcher: Batcher[int], now_s: float = 0.0) -> list[int]:
    """What runs, in order."""
    return [number for batch in drained(batcher, now_s) for number in payloads(batch)]


def test_nothing_waits_no_batch() -> None:
    batcher = filled([])
    assert (batcher.next_batch(0.0), batcher.drop_late(0.0), len(batcher)) == ([], [], 0)


@given(arrivals)
def test_nothing_is_lost_and_nothing_comes_twice(rows: Arrivals) -> None:
    assert sorted(order(filled(entries_for(rows)))) == list(range(len(rows)))


@given(arrivals)
def test_batch_keeps_to_its_budget_unless_it_is_a_single_window(rows: Arrivals) -> None:
    for batch in drained(filled(entries_for(rows))):
        assert len(batch) == 1 or sum(one.tokens for one in batch) <= BUDGET


@given(arrivals)
def test_batch_holds_one_model(rows: Arrivals) -> None:
    for batch in drained(filled(entries_for(rows))):
        assert len({one.lane for one in batch}) == 1


@given(arrivals)
def test_most_urgent_goes_first_and_the_batch_is_in_that_order(rows: Arrivals) -> None:
    """Equal ages: the least remaining work. Equal work: the order of arrival."""
    waiting = sorted(range(len(rows)), key=lambda number: rows[number][1])
    for batch in drained(filled(entries_for(rows))):
        assert payloads(batch)[0] == waiting[0]
        assert payloads(batch) == sorted(payloads(batch), key=waiting.index)
        waiting = [number for number in waiting if number not in payloads(batch)]


@given(arrivals)
def test_before_anything_is_measured_windows_run_in_the_order_of_arrival(rows: Arrivals) -> None:
    waiting = list(range(len(rows)))
    for batch in drained(filled(entries_for(rows), Throughput(AGE_FACTOR))):
        assert payloads(batch)[0] == waiting[0]
        waiting = [number for number in waiting if number not in payloads(batch)]


@given(arrivals)
def test_who_stays_behind_is_of_another_model_or_does_not_fit(rows: Arrivals) -> None:
    entries = entries_for(rows)
    waiting = dict(enumerate(entries))
    for batch in drained(filled(entries)):
        for number in payloads(batch):
            del waiting[number]
        tokens = sum(one.tokens for one in batch)
        for one in waiting.values():
            assert one.lane != batch[0].lane or tokens + one.tokens > BUDGET


def test_remaining_work_of_the_whole_request_counts_not_that_of_the_window() -> None:
    assert order(filled([entry(0, 60, left=900), entry(1, 90, left=90)])) == [1, 0]


def test_waiting_makes_up_for_work() -> None:
    """2 s of work more are made up for by 20 s of waiting more."""
    old = entry(0, 60, left=300, arrived_s=0.0)
    assert order(filled([old, entry(1, 100, arrived_s=19.0)]), 19.0) == [1, 0]
    assert order(filled([old, entry(1, 100, arrived_s=21.0)]), 21.0) == [0, 1]


def test_what_is_done_of_a_request_makes_its_next_window_more_urgent() -> None:
    """Remaining work is looked up when a batch forms, not when the window came."""
    long, short = entry(0, 100, left=500), entry(1, 100, left=200)
    batcher = filled([long, short])
    long.task.done(long.lane, 400)
    assert order(batcher) == [0, 1]


@given(arrivals, st.data())
def test_cancelled_windows_never_come_out_and_the_others_all_do(rows: Arrivals, data: st.DataObject) -> None:
    cancelled: set[int] = set()
    batcher = filled(entries_for(rows, cancelled))
    numbers = st.sets(st.sampled_from(range(len(rows)))) if rows else st.just(set())
    ran: list[int] = []
    while True:
        cancelled |= data.draw(numbers)
        before = set(cancelled)
        batch = payloads(batcher.next_batch(0.0))
        assert not before & {*batch}
        if not batch:
            break
        ran += batch
    assert {*ran} | cancelled == set(range(len(rows)))
    assert len(ran) == len({*ran})
    assert len(batcher) == 0


@given(arrivals, st.lists(st.floats(0, 3), min_size=40, max_size=40))
def test_late_windows_are_handed_back_and_never_run(rows: Arrivals, deadlines_s: list[float]) -> None:
    """At 100 tokens a second, at time 1."""
    entries = [
        entry(number, tokens, model=model, deadline_s=deadlines_s[number])
        for number, (model, tokens) in enumerate(rows)
    ]
    batcher = filled(entries)
    late = [number for number, (_, tokens) in enumerate(rows) if 1.0 + tokens / 100 > deadlines_s[number]]
    assert payloads(batcher.drop_late(1.0)) == late
    assert sorted([*order(batcher, 1.0), *late]) == list(range(len(rows)))


def test_cancelled_windows_are_dropped_but_not_handed_back() -> None:
    batcher = filled([entry(0, 10, deadline_s=-1.0, cancelled={0})])
    assert (batcher.drop_late(0.0), len(batcher)) == ([], 0)


def test_window_beyond_the_budget_runs_alone() -> None:
    batches = drained(filled([entry(0, 5000), entry(1, 1), entry(2, 99)]))
    assert [payloads(batch) for batch in batches] == [[1, 2], [0]]


def test_model_may_have_a_budget_of_its_own() -> None:
    rows = [("a", 40), ("a", 40), ("b", 40), ("b", 40)]
    batcher = filled(entries_for(rows))
    batcher.set_budget(lane("b"), 79)
    assert [payloads(batch) for batch in drained(batcher)] == [[0, 1], [2], [3]]
    assert (batcher.budget(lane("a")), batcher.budget(lane("b"))) == (BUDGET, 79)


@pytest.mark.parametrize("tokens", [0, -1])
def test_budget_never_falls_below_one(tokens: int) -> None:
    batcher = filled([])
    batcher.set_budget(lane("a"), tokens)
    assert batcher.budget(lane("a")) == 1
