"""How fast work goes, and who is first because of it."""

from __future__ import annotations

import math

import pytest

from rerank.engine.throughput import Lane, Stage, Task, Throughput

LANE = Lane(Stage.RANK, "model")
OTHER = Lane(Stage.RANK, "other")
PREPARE = Lane(Stage.PREPARE, "model")


def measured(*lanes: Lane, tokens_per_s: float = 100.0, age_factor: float = 0.1) -> Throughput:
    """A throughput that has measured these lanes at time 0."""
    throughput = Throughput(age_factor)
    for lane in lanes:
        throughput.observe(lane, 1, 1000.0, 0.0)  # warms up
        throughput.observe(lane, tokens_per_s, 1.0, 0.0)
    return throughput


def test_first_batch_of_a_lane_warms_it_up_and_is_not_counted() -> None:
    throughput = Throughput(0.1)
    throughput.observe(LANE, 1, 1000.0, 0.0)
    assert throughput.seconds({LANE: 50.0}, 0.0) == 0.0
    throughput.observe(LANE, 100, 1.0, 0.0)
    assert throughput.seconds({LANE: 50.0}, 0.0) == 0.5


def test_work_without_a_measured_rate_counts_nothing() -> None:
    assert measured(LANE).seconds({LANE: 100.0, OTHER: 1e9}, 0.0) == 1.0


def test_seconds_of_lanes_add_up_or_stand_for_one_stage() -> None:
    throughput = measured(LANE, PREPARE)
    left = {LANE: 100.0, PREPARE: 300.0}
    assert throughput.seconds(left, 0.0) == 4.0
    assert [throughput.seconds(left, 0.0, stage) for stage in (Stage.RANK, Stage.PREPARE)] == [1.0, 3.0]


def test_rate_follows_what_is_measured() -> None:
    throughput = measured(LANE)
    for _ in range(100):
        throughput.observe(LANE, 200, 1.0, 0.0)
    assert throughput.seconds({LANE: 200.0}, 0.0) == pytest.approx(1.0, rel=1e-3)


def test_long_batches_weigh_more_than_short_ones() -> None:
    throughput = measured(LANE)
    throughput.observe(LANE, 1000, 1.0, 0.0)
    assert throughput.seconds({LANE: 1090.0}, 0.0) == pytest.approx(1.9)  # decayed: 90 tokens in 0.9 s, 1000 in 1 s


def test_old_rate_is_trusted_no_more_and_then_measured_anew() -> None:
    """Otherwise one slow batch could make the service refuse everybody forever."""
    throughput = measured(LANE, tokens_per_s=0.001)
    assert throughput.seconds({LANE: 1.0}, 30.0) == pytest.approx(1000.0)
    assert throughput.seconds({LANE: 1.0}, 30.1) == 0.0
    throughput.observe(LANE, 100, 1.0, 40.0)
    assert throughput.seconds({LANE: 1.0}, 40.0) == pytest.approx(0.01)


def test_rate_of_long_batches_is_trusted_for_ten_of_them() -> None:
    throughput = measured(LANE)
    throughput.observe(LANE, 100, 60.0, 0.0)
    assert throughput.seconds({LANE: 1.0}, 600.0) > 0
    assert throughput.seconds({LANE: 1.0}, 601.0) == 0


def test_less_remaining_work_goes_first() -> None:
    throughput = measured(LANE)
    short, long = Task(0.0, left={LANE: 10.0}), Task(0.0, left={LANE: 20.0})
    assert throughput.priority(short, 0.0) < throughput.priority(long, 0.0)


def test_work_of_different_models_is_compared_by_time() -> None:
    throughput = measured(LANE)
    throughput.observe(OTHER, 1, 1.0, 0.0)
    throughput.observe(OTHER, 10_000, 1.0, 0.0)
    assert throughput.priority(Task(0.0, left={OTHER: 1000.0}), 0.0) < throughput.priority(
        Task(0.0, left={LANE: 100.0}), 0.0
    )


@pytest.mark.parametrize(("later_s", "overtakes"), [(9.9, True), (10.1, False)])
def test_second_of_work_is_overtaken_only_by_those_who_come_soon_enough(later_s: float, overtakes: bool) -> None:
    throughput = measured(LANE, age_factor=0.1)
    waiting, newcomer = Task(0.0, left={LANE: 100.0}), Task(later_s, left={})
    assert (throughput.priority(newcomer, later_s) < throughput.priority(waiting, later_s)) is overtakes


def test_before_anything_is_measured_the_oldest_goes_first() -> None:
    throughput = Throughput(0.1)
    assert throughput.priority(Task(0.0, left={LANE: 1e9}), 5.0) < throughput.priority(Task(1.0, left={LANE: 1.0}), 5.0)


@pytest.mark.parametrize(("deadline_s", "late"), [(math.inf, False), (3.0, False), (2.99, True), (0.5, True)])
def test_late_is_who_could_not_be_ready_even_alone(deadline_s: float, late: bool) -> None:
    assert measured(LANE).is_late(Task(0.0, deadline_s, {LANE: 200.0}), 1.0) is late


def test_unmeasured_work_is_late_when_its_deadline_has_passed() -> None:
    task = Task(0.0, 2.0, {LANE: 1e9})
    assert [Throughput(0.1).is_late(task, now_s) for now_s in (1.9, 2.1)] == [False, True]


def test_work_that_is_done_is_left_no_more() -> None:
    task = Task(0.0, left={LANE: 30.0, PREPARE: 5.0})
    task.done(LANE, 10)
    task.done(PREPARE, 6)
    task.done(OTHER, 1)
    assert task.left == {LANE: 20.0, PREPARE: 0.0, OTHER: 0.0}
    assert task.tokens(Stage.RANK) == 20.0
