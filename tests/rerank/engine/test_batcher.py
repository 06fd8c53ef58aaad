"""Batcher: loses no entry, keeps to the batch size, and runs the highest priority first."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.engine.admission import ModelStage, PendingRequest, Stage, Throughput
from rerank.engine.worker import Batcher, QueueEntry

#: Entries as (model, tokens); payloads are numbered in the order of arrival.
Arrivals = list[tuple[str, int]]
MAX_BATCH_TOKENS = 100
AGE_FACTOR = 0.1

arrivals = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 150)), max_size=40)


def ranking(model: str) -> ModelStage:
    return ModelStage(Stage.RANK, model)


def measured_throughput() -> Throughput:
    """100 tokens per second for each model."""
    throughput = Throughput(AGE_FACTOR)
    for model in "abc":
        throughput.observe(ranking(model), 1, 1.0, 0.0)
        throughput.observe(ranking(model), 100, 1.0, 0.0)
    return throughput


def entry(
    number: int,
    tokens: int,
    remaining: float | None = None,
    model: str = "a",
    arrived_s: float = 0.0,
    deadline_s: float = math.inf,
    cancelled: Set[int] = frozenset(),
) -> QueueEntry[int]:
    """A window of a request with `remaining` tokens; by default, those of this window."""
    request = PendingRequest(arrived_s, deadline_s, {ranking(model): tokens if remaining is None else remaining})
    return QueueEntry(number, request, ranking(model), tokens, partial(cancelled.__contains__, number))


def entries_for(rows: Arrivals, cancelled: Set[int] = frozenset()) -> list[QueueEntry[int]]:
    """One entry per row; it is cancelled while its number is in `cancelled`."""
    return [entry(number, tokens, model=model, cancelled=cancelled) for number, (model, tokens) in enumerate(rows)]


def filled(entries: Sequence[QueueEntry[int]], throughput: Throughput | None = None) -> Batcher[int]:
    batcher: Batcher[int] = Batcher(throughput or measured_throughput(), MAX_BATCH_TOKENS)
    for one in entries:
        batcher.add(one)
    return batcher


def drained(batcher: Batcher[int]) -> list[list[QueueEntry[int]]]:
    """All batches until the queue is empty."""
    batches = []
    while batch := batcher.next_batch():
        batches.append(batch)
    return batches


def payloads(entries: Sequence[QueueEntry[int]]) -> list[int]:
    return [one.payload for one in entries]


def order(batcher: Batcher[int]) -> list[int]:
    """The entries in the order in which they run."""
    return [number for batch in drained(batcher) for number in payloads(batch)]


def test_empty_queue_gives_no_batch() -> None:
    batcher = filled([])
    assert (batcher.next_batch(), batcher.pop_late(0.0), len(batcher)) == ([], [], 0)


@given(arrivals)
def test_each_entry_runs_exactly_once(rows: Arrivals) -> None:
    assert sorted(order(filled(entries_for(rows)))) == list(range(len(rows)))


@given(arrivals)
def test_batch_keeps_to_the_batch_size_unless_it_is_a_single_window(rows: Arrivals) -> None:
    for batch in drained(filled(entries_for(rows))):
        assert len(batch) == 1 or sum(one.tokens for one in batch) <= MAX_BATCH_TOKENS


@given(arrivals)
def test_batch_holds_one_model(rows: Arrivals) -> None:
    for batch in drained(filled(entries_for(rows))):
        assert len({one.model_stage for one in batch}) == 1


@given(arrivals)
def test_batches_and_their_entries_are_in_order_of_priority(rows: Arrivals) -> None:
    """Equal ages: the least remaining work. Equal work: the order of arrival."""
    waiting = sorted(range(len(rows)), key=lambda number: rows[number][1])
    for batch in drained(filled(entries_for(rows))):
        assert payloads(batch)[0] == waiting[0]
        assert payloads(batch) == sorted(payloads(batch), key=waiting.index)
        waiting = [number for number in waiting if number not in payloads(batch)]


@given(arrivals)
def test_entries_run_in_order_of_arrival_before_anything_is_measured(rows: Arrivals) -> None:
    waiting = list(range(len(rows)))
    for batch in drained(filled(entries_for(rows), Throughput(AGE_FACTOR))):
        assert payloads(batch)[0] == waiting[0]
        waiting = [number for number in waiting if number not in payloads(batch)]


@given(arrivals)
def test_entry_that_is_left_out_is_of_another_model_or_does_not_fit(rows: Arrivals) -> None:
    entries = entries_for(rows)
    waiting = dict(enumerate(entries))
    for batch in drained(filled(entries)):
        for number in payloads(batch):
            del waiting[number]
        tokens = sum(one.tokens for one in batch)
        for one in waiting.values():
            assert one.model_stage != batch[0].model_stage or tokens + one.tokens > MAX_BATCH_TOKENS


def test_priority_depends_on_the_remaining_work_of_the_request_not_of_the_window() -> None:
    assert order(filled([entry(0, 60, remaining=900), entry(1, 90, remaining=90)])) == [1, 0]


def test_age_offsets_remaining_work() -> None:
    """20 s of age offset 2 s of work."""
    old = entry(0, 60, remaining=300, arrived_s=0.0)
    assert order(filled([old, entry(1, 100, arrived_s=19.0)])) == [1, 0]
    assert order(filled([old, entry(1, 100, arrived_s=21.0)])) == [0, 1]


def test_completed_work_raises_the_priority_of_the_next_window() -> None:
    """Priorities are computed when a batch is formed, not when the window arrives."""
    long, short = entry(0, 100, remaining=500), entry(1, 100, remaining=200)
    batcher = filled([long, short])
    long.request.subtract(long.model_stage, 400)
    assert order(batcher) == [0, 1]


@given(arrivals, st.data())
def test_cancelled_windows_never_run_and_all_others_do(rows: Arrivals, data: st.DataObject) -> None:
    cancelled: set[int] = set()
    batcher = filled(entries_for(rows, cancelled))
    numbers = st.sets(st.sampled_from(range(len(rows)))) if rows else st.just(set())
    ran: list[int] = []
    while True:
        cancelled |= data.draw(numbers)
        before = set(cancelled)
        batch = payloads(batcher.next_batch())
        assert not before & {*batch}
        if not batch:
            break
        ran += batch
    assert {*ran} | cancelled == set(range(len(rows)))
    assert len(ran) == len({*ran})
    assert len(batcher) == 0


@given(arrivals, st.lists(st.floats(0, 3), min_size=40, max_size=40))
def test_late_windows_are_removed_and_never_run(rows: Arrivals, deadlines_s: list[float]) -> None:
    """At 100 tokens per second, at time 1."""
    entries = [
        entry(number, tokens, model=model, deadline_s=deadlines_s[number])
        for number, (model, tokens) in enumerate(rows)
    ]
    batcher = filled(entries)
    late = [number for number, (_, tokens) in enumerate(rows) if 1.0 + tokens / 100 > deadlines_s[number]]
    assert payloads(batcher.pop_late(1.0)) == late
    assert sorted([*order(batcher), *late]) == list(range(len(rows)))


def test_cancelled_windows_do_not_count_as_late() -> None:
    batcher = filled([entry(0, 10, deadline_s=-1.0, cancelled={0})])
    assert (batcher.pop_late(0.0), len(batcher)) == ([], 0)


def test_window_beyond_the_batch_size_runs_alone() -> None:
    batches = drained(filled([entry(0, 5000), entry(1, 1), entry(2, 99)]))
    assert [payloads(batch) for batch in batches] == [[1, 2], [0]]


def test_model_may_have_its_own_batch_size() -> None:
    rows = [("a", 40), ("a", 40), ("b", 40), ("b", 40)]
    batcher = filled(entries_for(rows))
    batcher.set_max_batch_tokens(ranking("b"), 79)
    assert [payloads(batch) for batch in drained(batcher)] == [[0, 1], [2], [3]]
    assert (batcher.max_batch_tokens(ranking("a")), batcher.max_batch_tokens(ranking("b"))) == (MAX_BATCH_TOKENS, 79)


@pytest.mark.parametrize("tokens", [0, -1])
def test_batch_size_is_at_least_one_token(tokens: int) -> None:
    batcher = filled([])
    batcher.set_max_batch_tokens(ranking("a"), tokens)
    assert batcher.max_batch_tokens(ranking("a")) == 1
