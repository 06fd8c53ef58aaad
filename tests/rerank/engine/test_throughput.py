"""Throughput: measured rates, and the priorities and deadlines that follow from them."""

from __future__ import annotations

import math

import pytest

from rerank.engine.admission import ModelStage, PendingRequest, Stage, Throughput

MODEL = ModelStage(Stage.RANK, "model")
OTHER = ModelStage(Stage.RANK, "other")
PREPARE = ModelStage(Stage.PREPARE, "model")


def measured(*model_stages: ModelStage, tokens_per_s: float = 100.0, age_factor: float = 0.1) -> Throughput:
    """A Throughput that has measured these rates at time 0."""
    throughput = Throughput(age_factor)
    for model_stage in model_stages:
        throughput.observe(model_stage, 1, 1000.0, 0.0)  # warms up
        throughput.observe(model_stage, tokens_per_s, 1.0, 0.0)
    return throughput


def seconds(
    throughput: Throughput,
    remaining: dict[ModelStage, float],
    stage: Stage | None = None,
    probes: frozenset[ModelStage] = frozenset(),
    arrived_s: float = 0.0,
) -> float:
    return throughput.seconds(PendingRequest(arrived_s, remaining=remaining, probes=probes), stage)


def test_first_batch_of_a_model_is_not_counted() -> None:
    throughput = Throughput(0.1)
    throughput.observe(MODEL, 1, 1000.0, 0.0)
    assert seconds(throughput, {MODEL: 50.0}) == 0.0
    throughput.observe(MODEL, 100, 1.0, 0.0)
    assert seconds(throughput, {MODEL: 50.0}) == 0.5


def test_work_without_a_measured_rate_counts_as_zero_seconds() -> None:
    assert seconds(measured(MODEL), {MODEL: 100.0, OTHER: 1e9}) == 1.0


def test_seconds_are_the_sum_of_all_stages_or_of_one() -> None:
    throughput = measured(MODEL, PREPARE)
    remaining = {MODEL: 100.0, PREPARE: 300.0}
    assert seconds(throughput, remaining) == 4.0
    assert [seconds(throughput, remaining, stage) for stage in (Stage.RANK, Stage.PREPARE)] == [1.0, 3.0]


def test_rate_converges_to_the_latest_measurements() -> None:
    throughput = measured(MODEL)
    for _ in range(100):
        throughput.observe(MODEL, 200, 1.0, 0.0)
    assert seconds(throughput, {MODEL: 200.0}) == pytest.approx(1.0, rel=1e-3)


def test_long_batches_weigh_more_than_short_ones() -> None:
    throughput = measured(MODEL)
    throughput.observe(MODEL, 1000, 6.0, 0.0)
    assert seconds(throughput, {MODEL: 1090.0}) == pytest.approx(6.9)  # decayed: 90 tokens in 0.9 s, 1000 in 6 s


def test_one_stalled_batch_does_not_change_the_rate() -> None:
    throughput = measured(MODEL)
    for _ in range(3):
        throughput.observe(MODEL, 100, 3600.0, 0.0)
        assert seconds(throughput, {MODEL: 100.0}) == pytest.approx(1.0)
        throughput.observe(MODEL, 100, 1.0, 0.0)


def test_slowness_counts_from_the_second_slow_batch() -> None:
    throughput = measured(MODEL)
    for _ in range(2):
        throughput.observe(MODEL, 100, 100.0, 0.0)
    assert seconds(throughput, {MODEL: 190.0}) == pytest.approx(0.9 + 100.0)


@pytest.mark.parametrize("slow_batches", [1, 100])
def test_normal_batch_after_slow_ones_corrects_the_rate(slow_batches: int) -> None:
    throughput = measured(MODEL)
    for _ in range(slow_batches):
        throughput.observe(MODEL, 100, 3600.0, 0.0)
    throughput.observe(MODEL, 100, 1.0, 0.0)
    assert seconds(throughput, {MODEL: 100.0}) == pytest.approx(1.0)


def test_stall_in_the_first_measured_batch_is_corrected_too() -> None:
    throughput = Throughput(0.1)
    for duration_s in (1.0, 3600.0, 1.0):
        throughput.observe(MODEL, 100, duration_s, 0.0)
    assert seconds(throughput, {MODEL: 100.0}) == pytest.approx(1.0)


def test_rate_is_kept_while_nothing_runs() -> None:
    assert [measured(MODEL).is_stale(MODEL, now_s) for now_s in (0.0, 1.0, 1.1)] == [False, False, True]
    assert not measured(MODEL).is_stale(OTHER, 1e9), "it has no rate that could be wrong"


def test_probed_work_counts_once_a_batch_has_run() -> None:
    throughput = measured(MODEL, PREPARE)
    work, probes = {MODEL: 100.0, PREPARE: 300.0}, frozenset({MODEL})
    assert seconds(throughput, work, probes=probes, arrived_s=5.0) == 3.0
    throughput.observe(MODEL, 100, 1.0, 6.0)
    assert seconds(throughput, work, probes=probes, arrived_s=5.0) == 4.0


def test_less_remaining_work_has_priority() -> None:
    throughput = measured(MODEL)
    short, long = PendingRequest(0.0, remaining={MODEL: 10.0}), PendingRequest(0.0, remaining={MODEL: 20.0})
    assert throughput.priority(short) < throughput.priority(long)


def test_work_of_different_models_is_compared_in_seconds() -> None:
    throughput = measured(MODEL)
    throughput.observe(OTHER, 1, 1.0, 0.0)
    throughput.observe(OTHER, 10_000, 1.0, 0.0)
    assert throughput.priority(PendingRequest(0.0, remaining={OTHER: 1000.0})) < throughput.priority(
        PendingRequest(0.0, remaining={MODEL: 100.0})
    )


@pytest.mark.parametrize(("later_s", "overtakes"), [(9.9, True), (10.1, False)])
def test_one_second_of_work_is_overtaken_only_by_requests_that_arrive_soon_enough(
    later_s: float, overtakes: bool
) -> None:
    throughput = measured(MODEL, age_factor=0.1)
    waiting, newcomer = PendingRequest(0.0, remaining={MODEL: 100.0}), PendingRequest(later_s, remaining={})
    assert (throughput.priority(newcomer) < throughput.priority(waiting)) is overtakes


def test_oldest_request_has_priority_before_anything_is_measured() -> None:
    throughput = Throughput(0.1)
    assert throughput.priority(PendingRequest(0.0, remaining={MODEL: 1e9})) < throughput.priority(
        PendingRequest(1.0, remaining={MODEL: 1.0})
    )


@pytest.mark.parametrize(("deadline_s", "late"), [(math.inf, False), (3.0, False), (2.99, True), (0.5, True)])
def test_request_is_late_if_it_could_not_finish_even_alone(deadline_s: float, late: bool) -> None:
    assert measured(MODEL).is_late(PendingRequest(0.0, deadline_s, {MODEL: 200.0}), 1.0) is late


def test_unmeasured_work_is_late_once_its_deadline_has_passed() -> None:
    request = PendingRequest(0.0, 2.0, {MODEL: 1e9})
    assert [Throughput(0.1).is_late(request, now_s) for now_s in (1.9, 2.1)] == [False, True]


def test_completed_work_is_subtracted_down_to_zero() -> None:
    request = PendingRequest(0.0, remaining={MODEL: 30.0, PREPARE: 5.0})
    request.subtract(MODEL, 10)
    request.subtract(PREPARE, 6)
    request.subtract(OTHER, 1)
    assert request.remaining == {MODEL: 20.0, PREPARE: 0.0, OTHER: 0.0}
    assert request.remaining_tokens(Stage.RANK) == 20.0
