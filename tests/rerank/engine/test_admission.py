"""Admission control: which requests are rejected, and with which error."""

from __future__ import annotations

import math

import pytest

from rerank.engine.admission import AdmissionController
from rerank.engine.job import ModelStage, QueuedJob, Stage
from rerank.engine.throughput import Throughput
from rerank.errors import DeadlineExceeded, Overloaded
from tests.rerank.engine import harness

MODEL = ModelStage(Stage.RANK, "model")
PREPARE = ModelStage(Stage.PREPARE, "model")
OTHER = ModelStage(Stage.RANK, "other")
#: When the rates were measured: so late that no request of these tests is a probe unless it says so.
MEASURED_S = 10.0
#: When an idle model may be probed.
STALE_S = MEASURED_S + 1.1


def throughput_of(tokens_per_s: float, passages_per_s: float = 1e9) -> Throughput:
    return harness.throughput_of({MODEL: tokens_per_s, PREPARE: passages_per_s}, MEASURED_S)


def request(tokens: float, deadline_s: float = math.inf, arrived_s: float = 0.0, passages: float = 0.0) -> QueuedJob:
    return harness.pending({MODEL: tokens, PREPARE: passages}, deadline_s, arrived_s)


def admitted(throughput: Throughput, *requests: QueuedJob, max_queue_tokens: int = 10**9) -> AdmissionController:
    admission = AdmissionController(throughput, max_queue_tokens)
    for tokens in requests:
        admission.admit(tokens, 0.0)
    return admission


def test_deadline_that_could_not_be_met_even_alone_is_rejected() -> None:
    admission = admitted(throughput_of(100))
    text = "3000 ms of work remain and the deadline is in 2000 ms; allow"
    with pytest.raises(DeadlineExceeded, match=text) as caught:
        admission.admit(request(300, deadline_s=3.0), 1.0)
    assert caught.value.metadata == {"needed_ms": "3000", "left_ms": "2000"}
    assert admission.queued_tokens == 0


def test_deadline_that_the_queue_makes_impossible_is_an_overload() -> None:
    """4.5 s of work of higher priority and 3 s of its own, times the margin of 1.4, are 10.5 s."""
    admission = admitted(throughput_of(100), request(200), request(250))
    with pytest.raises(Overloaded, match="450 tokens are queued, which could make the request 5500 ms late") as caught:
        admission.admit(request(300, deadline_s=5.0), 0.0)
    assert caught.value.retry_after_s == pytest.approx(4.5), "the time until the queue is empty"
    assert admission.queued_tokens == 450


def test_request_that_would_make_an_admitted_one_late_is_rejected() -> None:
    """At four times the load, many admitted requests missed their deadlines because of later, shorter ones."""
    admission = admitted(throughput_of(100), request(500, deadline_s=8.0))
    with pytest.raises(Overloaded, match="500 tokens are queued, which could make an admitted request 400 ms late"):
        admission.admit(request(100, deadline_s=100.0), 0.0)
    admission.admit(request(50, deadline_s=100.0), 0.0)


def test_caller_with_several_times_the_work_of_another_is_not_protected_from_it() -> None:
    """Callers have equal shares of a model: what takes most of it cannot keep short requests out."""
    admission = admitted(throughput_of(100), harness.pending({MODEL: 500}, 8.0, caller="large"))
    with pytest.raises(Overloaded, match="could make an admitted request"):
        admission.admit(harness.pending({MODEL: 126}, 100.0, caller="other"), 0.0)
    admission.admit(harness.pending({MODEL: 124}, 100.0, caller="other"), 0.0)


def test_admitted_request_that_is_late_anyway_rejects_no_other() -> None:
    admission = admitted(throughput_of(100), request(500, deadline_s=8.0))
    admission.admit(request(100, deadline_s=100.0, arrived_s=4.0), 4.0)


def test_no_deadline_is_rejected_before_a_rate_is_measured_unless_it_has_passed() -> None:
    admission = admitted(Throughput(0.1), request(1e6))
    admission.admit(request(1e6, deadline_s=0.001), 0.0)
    with pytest.raises(DeadlineExceeded):
        admission.admit(request(1, deadline_s=1.0), 1.1)


def test_request_without_a_deadline_is_rejected_only_by_a_full_queue() -> None:
    admission = admitted(throughput_of(100), request(700), max_queue_tokens=1000)
    text = "700 tokens are queued; 301 more exceed the limit of 1000; try again"
    with pytest.raises(Overloaded, match=text) as caught:
        admission.admit(request(301), 0.0)
    assert caught.value.metadata == {"exceeded": "max_queue_tokens", "queued_tokens": "700", "limit": "1000"}
    assert caught.value.retry_after_s == pytest.approx(7.0)
    admission.admit(request(300), 0.0)
    assert admission.queued_tokens == 1000


def test_request_beyond_the_limit_is_admitted_to_an_empty_queue() -> None:
    assert admitted(throughput_of(100), request(5000), max_queue_tokens=1000).queued_tokens == 5000


def test_admitted_request_is_checked_again_without_counting_itself() -> None:
    """The engine checks again once the tokens of the first windows are known."""
    again = request(600, deadline_s=7.0)
    admission = admitted(throughput_of(100), again, max_queue_tokens=1000)
    again.remaining[MODEL] = 700.0
    admission.admit(again, 0.0)
    assert admission.queued_tokens == 700
    again.remaining[MODEL] = 701.0
    with pytest.raises(DeadlineExceeded):
        admission.admit(again, 0.0)


@pytest.mark.parametrize(
    ("tokens", "passages", "queued", "finish_s"),
    [
        (300, 0, request(1000), 2 * 3.0),  # requests of lower priority delay only by sharing its batches
        (200, 100, request(100), 1.0 + 2.0),  # the model is free before the passages are prepared
        (200, 100, request(0, passages=100), 1.0 + 1.0 + 2.0),  # the queued passages are prepared first
        (200, 100, request(300), 3.0 + 2.0),  # the model is busy longer than preparing takes
    ],
)
@pytest.mark.parametrize("slack_s", [0.01, -0.01])
def test_finish_is_estimated_from_both_stages(
    tokens: int, passages: int, queued: QueuedJob, finish_s: float, slack_s: float
) -> None:
    """Preparing and ranking run concurrently, each at 100 tokens per second; the margin is 1.4."""
    admission = admitted(throughput_of(100, passages_per_s=100), queued)
    new = request(tokens, deadline_s=1.4 * finish_s + slack_s, passages=passages)
    if slack_s > 0:
        admission.admit(new, 0.0)
    else:
        with pytest.raises((Overloaded, DeadlineExceeded)):
            admission.admit(new, 0.0)


# --- probes ---


def late(slack_s: float = 5.0, now_s: float = STALE_S, tokens: float = 100, passages: float = 0.0) -> QueuedJob:
    """A request that arrives now."""
    return request(tokens, now_s + slack_s, now_s, passages)


def test_request_probes_a_model_that_has_been_idle() -> None:
    """The measured rate may be wrong after a stall, and nothing but a batch can correct it."""
    admission = admitted(throughput_of(0.001))
    for now_s in (MEASURED_S, MEASURED_S + 1):
        with pytest.raises(DeadlineExceeded):
            admission.admit(late(now_s=now_s), now_s)
    probe = late()
    admission.admit(probe, STALE_S)
    admission.admit(probe, STALE_S + 2)  # again, once its windows are encoded


def test_one_request_probes_at_a_time() -> None:
    admission = admitted(throughput_of(0.001))
    first = late()
    admission.admit(first, STALE_S)
    with pytest.raises(DeadlineExceeded):
        admission.admit(late(), STALE_S)
    admission.release(first)  # before its batch has run, such as by its caller
    admission.admit(late(), STALE_S)


def test_probe_is_bound_by_its_deadline_and_by_the_queue() -> None:
    admission = admitted(throughput_of(100), harness.pending({OTHER: 60.0}), max_queue_tokens=100)
    with pytest.raises(DeadlineExceeded):
        admission.admit(late(slack_s=-1, tokens=10), STALE_S)
    with pytest.raises(Overloaded):
        admission.admit(late(slack_s=1e9, tokens=50), STALE_S)
