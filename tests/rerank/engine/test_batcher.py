"""The batcher loses nothing, starves nobody and keeps to both of its bounds."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.engine.batcher import Batcher, Entry
from rerank.errors import Overloaded

#: What waits, as (model, tokens); payloads are numbered in the order of arrival.
Arrivals = list[tuple[str, int]]
BUDGET = 100

arrivals = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 150)), max_size=40)


def entries_for(rows: Arrivals, cancelled: Set[int] = frozenset()) -> list[Entry[int]]:
    """One entry a row; it is cancelled while its number is in `cancelled`."""
    return [
        Entry(number, model, tokens, partial(cancelled.__contains__, number))
        for number, (model, tokens) in enumerate(rows)
    ]


def filled(entries: Sequence[Entry[int]], max_queue_tokens: int = 1_000_000) -> Batcher[int]:
    batcher: Batcher[int] = Batcher(BUDGET, max_queue_tokens)
    for entry in entries:
        batcher.add(entry)
    return batcher


def drained(batcher: Batcher[int]) -> list[list[Entry[int]]]:
    """All batches until nothing waits."""
    batches = []
    while batch := batcher.next_batch():
        batches.append(batch)
    return batches


def payloads(entries: Sequence[Entry[int]]) -> list[int]:
    return [entry.payload for entry in entries]


def test_nothing_waits_no_batch() -> None:
    batcher = filled([])
    assert batcher.next_batch() == []
    assert (len(batcher), batcher.queued_tokens) == (0, 0)


@given(arrivals)
def test_nothing_is_lost_and_nothing_comes_twice(rows: Arrivals) -> None:
    batches = drained(filled(entries_for(rows)))
    assert sorted(number for batch in batches for number in payloads(batch)) == list(range(len(rows)))


@given(arrivals)
def test_batch_keeps_to_its_budget_unless_it_is_a_single_window(rows: Arrivals) -> None:
    for batch in drained(filled(entries_for(rows))):
        assert len(batch) == 1 or sum(entry.tokens for entry in batch) <= BUDGET


@given(arrivals)
def test_batch_holds_one_model(rows: Arrivals) -> None:
    for batch in drained(filled(entries_for(rows))):
        assert len({entry.model for entry in batch}) == 1


@given(arrivals)
def test_oldest_window_always_goes_first(rows: Arrivals) -> None:
    """So that nobody starves, and inside a batch the order is that of arrival."""
    waiting = list(range(len(rows)))
    for batch in drained(filled(entries_for(rows))):
        assert payloads(batch)[0] == waiting[0]
        assert payloads(batch) == sorted(payloads(batch))
        waiting = [number for number in waiting if number not in payloads(batch)]


@given(arrivals)
def test_who_stays_behind_is_of_another_model_or_does_not_fit(rows: Arrivals) -> None:
    entries = entries_for(rows)
    waiting = dict(enumerate(entries))
    for batch in drained(filled(entries)):
        for number in payloads(batch):
            del waiting[number]
        tokens = sum(entry.tokens for entry in batch)
        for entry in waiting.values():
            assert entry.model != batch[0].model or tokens + entry.tokens > BUDGET


@given(arrivals)
def test_windows_of_one_size_run_in_the_order_of_arrival(rows: Arrivals) -> None:
    entries = entries_for([(model, 30) for model, _ in rows])
    ran = [entry for batch in drained(filled(entries)) for entry in batch]
    for model in "abc":
        order = [entry.payload for entry in ran if entry.model == model]
        assert order == sorted(order)


@given(arrivals, st.data())
def test_cancelled_windows_never_come_out_and_the_others_all_do(rows: Arrivals, data: st.DataObject) -> None:
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
    assert (len(batcher), batcher.queued_tokens) == (0, 0)


@given(arrivals, st.integers(1, 300))
def test_queue_keeps_to_its_bound_unless_it_holds_a_single_window(rows: Arrivals, bound: int) -> None:
    batcher = filled([], bound)
    accepted: list[Entry[int]] = []
    for entry in entries_for(rows):
        queued = sum(waiting.tokens for waiting in accepted)
        if accepted and queued + entry.tokens > bound:
            with pytest.raises(Overloaded):
                batcher.add(entry)
        else:
            batcher.add(entry)
            accepted.append(entry)
        assert (len(batcher), batcher.queued_tokens) == (len(accepted), sum(e.tokens for e in accepted))
        assert len(batcher) <= 1 or batcher.queued_tokens <= bound
    assert sorted(payloads([e for batch in drained(batcher) for e in batch])) == payloads(accepted)


def test_queued_tokens_fall_as_batches_leave() -> None:
    batcher = filled(entries_for([("a", 60), ("b", 50), ("a", 40), ("a", 30)]))
    seen = [(len(batcher), batcher.queued_tokens)]
    while batcher.next_batch():
        seen.append((len(batcher), batcher.queued_tokens))
    assert seen == [(4, 180), (2, 80), (1, 30), (0, 0)]


def test_refusal_names_what_waits_what_came_and_the_bound() -> None:
    batcher = filled(entries_for([("a", 60), ("b", 30)]), max_queue_tokens=100)
    expected = "90 tokens wait already; 11 more exceed the queue's 100; try again later"
    with pytest.raises(Overloaded, match=expected) as caught:
        batcher.add(Entry(2, "a", 11, lambda: False))
    assert caught.value.retry_after_s > 0
    assert caught.value.metadata == {"queued_tokens": "90", "limit": "100"}
    batcher.add(Entry(3, "a", 10, lambda: False))
    assert batcher.queued_tokens == 100


def test_cancelled_windows_make_room() -> None:
    cancelled: set[int] = set()
    batcher = filled(entries_for([("a", 60), ("a", 40)], cancelled), max_queue_tokens=100)
    cancelled.add(0)
    batcher.add(Entry(2, "a", 60, lambda: False))
    assert payloads(batcher.next_batch()) == [1, 2]


def test_window_beyond_both_bounds_runs_alone() -> None:
    batcher = filled(entries_for([("a", 5000)]), max_queue_tokens=1000)
    assert payloads(batcher.next_batch()) == [0]
