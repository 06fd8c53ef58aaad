"""Throughput: measured rates, and the priorities that follow from them."""

from __future__ import annotations

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


def test_long_batches_weigh_more_than_short_ones() -> None:
    throughput = measured(MODEL)
    throughput.observe(MODEL, 1000, 6.0, 0.0)
    assert seconds(throughput, 1090.0) == pytest.approx(6.9)  # decayed: 90 tokens in 0.9 s, 1000 in 6 s


def test_rate_is_kept_while_nothing_runs() -> None:
    assert [measured(MODEL).is_stale(MODEL, now_s) for now_s in (0.0, 1.0, 1.1)] == [False, False, True]
    assert not measured(MODEL).is_stale(OTHER, 1e9), "it has no rate that could be wrong"


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


def test_ratio_of_tokens_to_estimated_ones_decays_and_is_kept_per_model() -> None:
    throughput = Throughput(0.1)
    throughput.observe_tokens("model", 0, 0)
    assert throughput.token_ratio("model") == 1.0
    throughput.observe_tokens("model", 400, 20)
    assert (throughput.token_ratio("model"), throughput.token_ratio("other")) == (20.0, 1.0)
    for _ in range(100):
        throughput.observe_tokens("model", 50, 10)
    assert throughput.token_ratio("model") == pytest.approx(5.0, rel=0.01)
