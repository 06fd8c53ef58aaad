"""Who is refused, why, and what the refusal says."""

from __future__ import annotations

import math

import pytest

from rerank.engine.admission import Admission
from rerank.engine.throughput import Lane, Stage, Task, Throughput
from rerank.errors import DeadlineExceeded, Overloaded

LANE = Lane(Stage.RANK, "model")
PREPARE = Lane(Stage.PREPARE, "model")


def pace_of(tokens_per_s: float, passages_per_s: float = 1e9) -> Throughput:
    throughput = Throughput(0.1)
    for lane, rate in ((LANE, tokens_per_s), (PREPARE, passages_per_s)):
        throughput.observe(lane, 1, 1.0, 0.0)
        throughput.observe(lane, rate, 1.0, 0.0)
    return throughput


def task(tokens: float, deadline_s: float = math.inf, arrived_s: float = 0.0, passages: float = 0.0) -> Task:
    return Task(arrived_s, deadline_s, {LANE: tokens, PREPARE: passages})


def holding(throughput: Throughput, *tasks: Task, max_queue_tokens: int = 10**9) -> Admission:
    admission = Admission(throughput, max_queue_tokens)
    for one in tasks:
        admission.admit(one, 0.0)
    return admission


def test_deadline_that_could_not_be_met_alone_is_exceeded() -> None:
    admission = holding(pace_of(100))
    with pytest.raises(
        DeadlineExceeded, match="3000 ms of work remain and the deadline is in 2000 ms; allow"
    ) as caught:
        admission.admit(task(300, deadline_s=3.0), 1.0)
    assert caught.value.metadata == {"needed_ms": "3000", "left_ms": "2000"}
    assert admission.queued_tokens == 0


def test_deadline_that_others_make_impossible_is_an_overload() -> None:
    admission = holding(pace_of(100), task(200), task(250))
    with pytest.raises(
        Overloaded, match="450 tokens wait already, which would make the request 2500 ms late"
    ) as caught:
        admission.admit(task(300, deadline_s=5.0), 0.0)
    assert caught.value.retry_after_s == pytest.approx(4.5), "when those who are in are done"
    assert admission.queued_tokens == 450


def test_those_who_go_later_do_not_count() -> None:
    admission = holding(pace_of(100), task(1000))
    admission.admit(task(300, deadline_s=3.5), 0.0)


def test_those_of_the_same_urgency_who_came_before_count() -> None:
    admission = holding(pace_of(100), task(300))
    with pytest.raises(Overloaded):
        admission.admit(task(300, deadline_s=3.5), 0.0)


def test_nobody_is_refused_for_a_deadline_before_a_rate_was_measured() -> None:
    admission = holding(Throughput(0.1), task(1e6))
    admission.admit(task(1e6, deadline_s=0.001), 0.0)


def test_deadline_that_has_passed_is_refused_without_a_rate() -> None:
    with pytest.raises(DeadlineExceeded):
        holding(Throughput(0.1)).admit(task(1, deadline_s=1.0), 1.1)


def test_without_a_deadline_only_the_bound_refuses() -> None:
    admission = holding(pace_of(100), task(700), max_queue_tokens=1000)
    with pytest.raises(
        Overloaded, match="700 tokens wait already; 301 more exceed the queue's 1000; try again"
    ) as caught:
        admission.admit(task(301), 0.0)
    assert caught.value.metadata == {"queued_tokens": "700", "limit": "1000"}
    assert caught.value.retry_after_s == pytest.approx(7.0)
    admission.admit(task(300), 0.0)
    assert admission.queued_tokens == 1000


def test_request_beyond_the_bound_is_let_in_when_nobody_else_is() -> None:
    assert holding(pace_of(100), task(5000), max_queue_tokens=1000).queued_tokens == 5000


def test_who_leaves_makes_room() -> None:
    first = task(700)
    admission = holding(pace_of(100), first, max_queue_tokens=1000)
    admission.leave(first)
    admission.leave(first)
    admission.admit(task(1000), 0.0)


def test_who_is_in_is_not_in_its_own_way() -> None:
    """A request is checked again, when its tokens are known."""
    own = task(600, deadline_s=7.0)
    admission = holding(pace_of(100), own, max_queue_tokens=1000)
    own.left[LANE] = 700.0
    admission.admit(own, 0.0)
    assert admission.queued_tokens == 700
    own.left[LANE] = 701.0
    with pytest.raises(DeadlineExceeded):
        admission.admit(own, 0.0)


def test_retry_is_advised_before_a_rate_was_measured_too() -> None:
    with pytest.raises(Overloaded) as caught:
        holding(Throughput(0.1), task(10), max_queue_tokens=10).admit(task(1), 0.0)
    assert caught.value.retry_after_s == 1.0


@pytest.mark.parametrize(
    ("ahead", "finish_s"),
    [
        (task(100, passages=0), 1.0 + 2.0),  # the model is free when the own passages are prepared
        (task(0, passages=100), 1.0 + 1.0 + 2.0),  # its passages are prepared first
        (task(300, passages=0), 3.0 + 2.0),  # the model is busy longer than preparing takes
    ],
)
def test_preparing_and_ranking_go_side_by_side(ahead: Task, finish_s: float) -> None:
    """The newcomer: 1 s of preparing, 2 s of ranking."""
    for slack_s, admitted in ((0.01, True), (-0.01, False)):
        admission = holding(pace_of(100, passages_per_s=100), ahead)
        newcomer = task(200, deadline_s=finish_s + slack_s, arrived_s=0.0, passages=100)
        if admitted:
            admission.admit(newcomer, 0.0)
        else:
            with pytest.raises((Overloaded, DeadlineExceeded)):
                admission.admit(newcomer, 0.0)
