"""FairQueue: loses no work, keeps to the batch size, and runs the highest priority first."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.engine.accounts import CallUsage
from rerank.engine.queue import FairQueue
from rerank.engine.request import ModelPhase, Phase, Request
from rerank.types import Query

MODEL = ModelPhase(Phase.RANK, "model")
MAX_BATCH_TOKENS = 100


@dataclass(frozen=True)
class Entry:
    """Numbered work of a request, such as one window."""

    number: int
    request: Request
    tokens: int


#: The tokens of the one entry of each request; numbers are numbered in the order of arrival.
sizes = st.lists(st.integers(1, 150), max_size=40)
#: The tokens of the entries of each request.
requests_of_entries = st.lists(st.lists(st.integers(1, 150), min_size=1, max_size=6), max_size=10)


def entry(number: int, tokens: int, remaining: float | None = None, caller: str = "") -> Entry:
    """A window of a request with `remaining` tokens; by default, this window's."""
    return Entry(number, request(float(tokens if remaining is None else remaining), caller), tokens)


def request(remaining: float, caller: str = "") -> Request:
    made = Request(Query(""), (), (), usage=CallUsage(caller))
    made.remaining[MODEL] = remaining
    return made


def entries_of_requests(rows: Sequence[Sequence[int]]) -> list[Entry]:
    counter = itertools.count()
    jobs = [(request(float(sum(row))), row) for row in rows]
    return [Entry(next(counter), job, tokens) for job, row in jobs for tokens in row]


def filled(entries: Sequence[Entry]) -> FairQueue[Entry]:
    queue: FairQueue[Entry] = FairQueue(MODEL, MAX_BATCH_TOKENS)
    for one in entries:
        queue.add(one)
    return queue


def drained(queue: FairQueue[Entry]) -> list[list[Entry]]:
    """All batches until the queue is empty."""
    batches = []
    while batch := queue.next_batch():
        batches.append(batch)
    return batches


def numbers(entries: Sequence[Entry]) -> list[int]:
    return [one.number for one in entries]


def order(queue: FairQueue[Entry]) -> list[int]:
    """The entries in the order of their runs."""
    return [number for batch in drained(queue) for number in numbers(batch)]


@given(requests_of_entries)
def test_batch_keeps_to_the_batch_size_unless_it_is_a_single_window(rows):
    for batch in drained(filled(entries_of_requests(rows))):
        assert len(batch) == 1 or sum(one.tokens for one in batch) <= MAX_BATCH_TOKENS


@given(sizes)
def test_batches_and_their_entries_are_in_order_of_priority(rows):
    """Equal ages: the least remaining work. Equal work: the order of arrival."""
    waiting = sorted(range(len(rows)), key=lambda number: rows[number])
    for batch in drained(filled([entry(number, tokens) for number, tokens in enumerate(rows)])):
        assert numbers(batch)[0] == waiting[0]
        assert numbers(batch) == sorted(numbers(batch), key=waiting.index)
        waiting = [number for number in waiting if number not in numbers(batch)]


def test_completed_work_raises_the_priority_of_the_next_window():
    long, short = entry(0, 100, remaining=500), entry(1, 100, remaining=200)
    queue = filled([long, short])
    long.request.remaining[MODEL] -= 400
    queue.refresh(long.request)
    assert order(queue) == [0, 1]


def test_work_that_proves_to_be_more_lowers_the_priority():
    """The places from before, when less was expected of it, are still in the heap."""
    grown, other = entry(0, 60, remaining=60), entry(1, 80)
    queue = filled([grown, other])
    queue.discard(grown.request)
    grown.request.remaining[MODEL] = 200
    queue.add(grown)
    assert order(queue) == [1, 0]


@pytest.mark.parametrize(("ran_before", "order_after"), [(1900, [1, 0]), (2000, [0, 1])])
def test_shorter_request_goes_first_unless_twenty_times_the_difference_has_run_before_it_came(ran_before, order_after):
    queue = filled([entry(0, 200, remaining=200)])
    for number in range(10, 10 + ran_before // 100):
        queue.add(entry(number, 100))
        assert numbers(queue.next_batch()) == [number]
    queue.add(entry(1, 100))
    assert order(queue) == order_after


@given(requests_of_entries, st.data())
def test_discarded_requests_never_run_and_all_others_do(rows, data):
    entries = entries_of_requests(rows)
    queue = filled(entries)
    some = data.draw(st.lists(st.sampled_from(entries), max_size=3) if entries else st.just([]))
    discarded = {id(one.request) for one in some}
    ran = numbers(queue.next_batch())
    for one in some:
        queue.discard(one.request)
    later = order(queue)
    kept = [one.number for one in entries if id(one.request) not in discarded]
    assert not {one.number for one in entries if id(one.request) in discarded} & {*later}
    assert {*kept} <= {*ran, *later}
    assert len(queue) == 0


def test_a_batch_costs_the_same_whatever_waits():
    """The 20,000 entries that waited in the attack of narrow windows were all looked at before each batch."""

    def seconds_per_batch(requests: int, entries_each: int) -> float:
        queue = filled(entries_of_requests([[50] * entries_each] * requests))
        times = []
        for _ in range(50):
            start_s = time.perf_counter()
            queue.next_batch()
            times.append(time.perf_counter() - start_s)
        return min(times)

    assert seconds_per_batch(200, 100) < 10 * seconds_per_batch(20, 10)


# --- callers ---


def callers_of(queue: FairQueue[Entry]) -> list[str]:
    """The callers of the entries in the order of their runs."""
    return [one.request.usage.name for batch in drained(queue) for one in batch]


def test_callers_take_turns_by_tokens():
    """Whatever the number of their requests, and the sizes of these."""
    many = [entry(number, 50, caller="many") for number in range(20)]
    few = [entry(number, 100, caller="few") for number in range(3)]
    assert callers_of(filled([*many, *few])) == ["many", "many", "few"] * 3 + ["many"] * 14


def test_caller_saves_up_no_share_while_it_asks_for_nothing():
    queue = filled([entry(0, 100, caller="late")])
    queue.next_batch()
    for number in range(10):
        queue.add(entry(number, 100, caller="busy"))
    for _ in range(5):
        queue.next_batch()
    for number in range(3):
        queue.add(entry(number, 100, caller="late"))
    assert callers_of(queue)[:4] == ["late", "busy", "late", "busy"]


def test_newcomer_waits_for_no_more_than_the_caller_that_is_furthest_behind():
    """A caller whose long request had waited had 4,700 tokens of short ones before an honest one's."""
    queue = filled([entry(0, 2000, caller="behind"), *(entry(number, 100, caller="served") for number in range(1, 11))])
    for _ in range(10):
        assert [one.request.usage.name for one in queue.next_batch()] == ["served"]
    for number in range(11, 61):
        queue.add(entry(number, 10, caller="behind"))
    queue.add(entry(61, 5, caller="new"))
    assert callers_of(queue).index("new") <= 10, "one batch"


# --- preemption ---


def test_request_with_less_than_half_of_the_work_preempts():
    long = [entry(0, 100, caller="long")]
    for tokens, preempts in ((49, True), (50, False)):
        for caller in ("long", "other"):
            assert filled([entry(1, tokens, caller=caller)]).may_preempt(long, 0) is preempts
    short = filled([entry(1, 49)])
    assert not short.may_preempt([*long, entry(2, 90)], 0), "it would delay one that is not long"
    assert not filled([]).may_preempt(long, 0)


def test_batch_is_preempted_by_as_many_tokens_as_it_has():
    short, long = filled([entry(1, 10)]), [entry(0, 100), entry(0, 100)]
    assert [short.may_preempt(long, tokens) for tokens in (0, 199, 200)] == [True, True, False]


def test_work_after_some_that_does_not_fit_completes_the_batch():
    queue = filled([entry(0, 40), entry(1, 70), entry(2, 80), entry(3, 30, remaining=90.0)])
    assert numbers(queue.next_batch()) == [0, 3]
