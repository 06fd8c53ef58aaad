"""Throughput: measured rates, and the priorities and deadlines that follow from them."""

from __future__ import annotations

import math

import pytest

from rerank.engine.admission import Throughput
from rerank.engine.job import Job, ModelStage, Stage
from tests.rerank.engine.harness import pending, throughput_of

MODEL = ModelStage(Stage.RANK, "model")
OTHER = ModelStage(Stage.RANK, "other")
PREPARE = ModelStage(Stage.PREPARE, "model")


def measured(*model_stages: ModelStage) -> Throughput:
    """A Throughput that has measured 100 tokens per second at time 0."""
    return throughput_of(dict.fromkeys(model_stages, 100.0))


def seconds(throughput: Throughput, tokens: float = 100.0) -> float:
    return throughput.seconds(pending({MODEL: tokens}))


def test_first_batch_of_a_model_is_not_counted() -> None:
    throughput = Throughput(0.1)
    throughput.observe(MODEL, 1, 1000.0, 0.0)
    assert seconds(throughput, 50.0) == 0.0
    throughput.observe(MODEL, 100, 1.0, 0.0)
    assert seconds(throughput, 50.0) == 0.5


def test_work_without_a_measured_rate_counts_as_zero_seconds() -> None:
    assert measured(MODEL).seconds(pending({MODEL: 100.0, OTHER: 1e9})) == 1.0


def test_seconds_are_the_sum_of_all_stages_or_of_one() -> None:
    throughput, request = measured(MODEL, PREPARE), pending({MODEL: 100.0, PREPARE: 300.0})
    assert [throughput.seconds(request, stage) for stage in (None, Stage.RANK, Stage.PREPARE)] == [4.0, 1.0, 3.0]


def test_rate_converges_to_the_latest_measurements() -> None:
    throughput = measured(MODEL)
    for _ in range(100):
        throughput.observe(MODEL, 200, 1.0, 0.0)
    assert seconds(throughput, 200.0) == pytest.approx(1.0, rel=1e-3)


def test_long_batches_weigh_more_than_short_ones() -> None:
    throughput = measured(MODEL)
    throughput.observe(MODEL, 1000, 6.0, 0.0)
    assert seconds(throughput, 1090.0) == pytest.approx(6.9)  # decayed: 90 tokens in 0.9 s, 1000 in 6 s


def test_one_stalled_batch_does_not_change_the_rate() -> None:
    throughput = measured(MODEL)
    for _ in range(3):
        throughput.observe(MODEL, 100, 3600.0, 0.0)
        assert seconds(throughput) == pytest.approx(1.0)
        throughput.observe(MODEL, 100, 1.0, 0.0)


def test_slowness_counts_from_the_second_slow_batch() -> None:
    throughput = measured(MODEL)
    for _ in range(2):
        throughput.observe(MODEL, 100, 100.0, 0.0)
    assert seconds(throughput, 190.0) == pytest.approx(0.9 + 100.0)


@pytest.mark.parametrize("slow_batches", [1, 100])
def test_normal_batch_after_slow_ones_corrects_the_rate(slow_batches: int) -> None:
    throughput = measured(MODEL)
    for _ in range(slow_batches):
        throughput.observe(MODEL, 100, 3600.0, 0.0)
    throughput.observe(MODEL, 100, 1.0, 0.0)
    assert seconds(throughput) == pytest.approx(1.0)


def test_stall_in_the_first_measured_batch_is_corrected_too() -> None:
    throughput = Throughput(0.1)
    for duration_s in (1.0, 3600.0, 1.0):
        throughput.observe(MODEL, 100, duration_s, 0.0)
    assert seconds(throughput) == pytest.approx(1.0)


def test_rate_is_kept_while_nothing_runs() -> None:
    assert [measured(MODEL).is_stale(MODEL, now_s) for now_s in (0.0, 1.0, 1.1)] == [False, False, True]
    assert not measured(MODEL).is_stale(OTHER, 1e9), "it has no rate that could be wrong"


def test_probed_work_counts_once_a_batch_has_run() -> None:
    throughput, request = measured(MODEL, PREPARE), pending({MODEL: 100.0, PREPARE: 300.0}, arrived_s=5.0)
    request.probes = frozenset({MODEL})
    assert throughput.seconds(request) == 3.0
    throughput.observe(MODEL, 100, 1.0, 6.0)
    assert throughput.seconds(request) == 4.0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pending({MODEL: 10.0}), pending({MODEL: 20.0})),  # less remaining work
        (pending({OTHER: 1000.0}), pending({MODEL: 100.0})),  # compared in seconds: OTHER is a hundred times as fast
        (pending({}, arrived_s=9.9), pending({MODEL: 100.0})),  # one second of work waits for those of the next 10 s
        (pending({MODEL: 100.0}), pending({}, arrived_s=10.1)),
        (pending({PREPARE: 1e9}), pending({PREPARE: 1.0}, arrived_s=1.0)),  # the older one, if nothing is measured
    ],
)
def test_priority_is_by_remaining_seconds_and_age(first: Job, second: Job) -> None:
    throughput = throughput_of({MODEL: 100.0, OTHER: 10_000.0}, age_factor=0.1)
    assert throughput.priority(first) < throughput.priority(second)


@pytest.mark.parametrize(("deadline_s", "is_late"), [(math.inf, False), (3.0, False), (2.99, True), (0.5, True)])
def test_request_is_late_if_it_could_not_finish_even_alone(deadline_s: float, is_late: bool) -> None:
    assert measured(MODEL).is_late(pending({MODEL: 200.0}, deadline_s), 1.0) is is_late


def test_completed_work_is_subtracted_down_to_zero() -> None:
    request = pending({MODEL: 30.0, PREPARE: 5.0})
    for stage, tokens in ((MODEL, 10), (PREPARE, 6), (OTHER, 1)):
        request.subtract(stage, tokens)
    assert request.remaining == {MODEL: 20.0, PREPARE: 0.0, OTHER: 0.0}
    assert request.remaining_tokens(Stage.RANK) == 20.0


def test_ratio_of_tokens_to_estimated_ones_decays_and_is_kept_per_model() -> None:
    throughput = Throughput(0.1)
    throughput.observe_tokens("model", 0, 0)
    assert throughput.token_ratio("model") == 1.0
    throughput.observe_tokens("model", 400, 20)
    assert (throughput.token_ratio("model"), throughput.token_ratio("other")) == (20.0, 1.0)
    for _ in range(100):
        throughput.observe_tokens("model", 50, 10)
    assert throughput.token_ratio("model") == pytest.approx(5.0, rel=0.01)
