"""Throughput: measured rates, and the priorities that follow from them."""

from __future__ import annotations

import pytest

from rerank.engine.job import ModelStage, QueuedJob, Stage
from rerank.engine.throughput import Throughput
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
    throughput.observe(MODEL, {QueuedJob(): 1}, 1000.0, 0.0)
    assert seconds(throughput, 50.0) == 0.0
    throughput.observe(MODEL, {QueuedJob(): 100}, 1.0, 0.0)
    assert seconds(throughput, 50.0) == 0.5


@pytest.mark.parametrize("jobs_before", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("batches", [1, 50])
def test_one_strange_job_moves_no_estimate(jobs_before: int, batches: int) -> None:
    """After one request with long documents, others of 80 ms were refused for 21 s."""
    throughput = measured(MODEL)
    for _ in range(jobs_before - 1):
        throughput.observe(MODEL, {QueuedJob(): 100}, 1.0, 0.0)
    strange = QueuedJob()
    for _ in range(batches):
        throughput.observe(MODEL, {strange: 100}, 1000.0, 0.0)
        throughput.observe_tokens("model", strange, 100, 0.1)
    assert seconds(throughput) == pytest.approx(1.0)


def test_lasting_change_of_the_rate_is_followed() -> None:
    throughput = measured(MODEL)
    for _ in range(9):
        throughput.observe(MODEL, {QueuedJob(): 100}, 20.0, 0.0)
    assert seconds(throughput) == pytest.approx(20.0)
    throughput.observe(MODEL, {QueuedJob(): 100}, 1.0, 0.0)
    assert seconds(throughput) == pytest.approx(1.0), "at once, if it gets faster"


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
def test_priority_is_by_remaining_seconds_and_age(first: QueuedJob, second: QueuedJob) -> None:
    throughput = throughput_of({MODEL: 100.0, OTHER: 10_000.0}, age_factor=0.1)
    assert throughput.priority(first) < throughput.priority(second)


def test_ratio_of_tokens_to_estimated_ones_is_that_of_the_latest_jobs_of_a_model() -> None:
    throughput = Throughput(0.1)
    throughput.observe_tokens("model", QueuedJob(), 0, 0)
    assert throughput.token_ratio("model") == 1.0
    throughput.observe_tokens("model", QueuedJob(), 400, 20)
    assert (throughput.token_ratio("model"), throughput.token_ratio("other")) == (20.0, 1.0)
    for _ in range(9):
        throughput.observe_tokens("model", QueuedJob(), 50, 10)
    assert throughput.token_ratio("model") == pytest.approx(5.0)
