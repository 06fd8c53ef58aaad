"""Admission, deadlines, partial answers and cancelled calls over a real socket."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2

from rerank.models.encoder import Encoder
from rerank.v1 import rerank_pb2 as pb
from tests.rerank.engine.harness import set_throughput
from tests.serving import TIMEOUT_S, HeldService, held_service, numbered_candidates, refusal, wait_for

#: Nine windows of 20 tokens each.
CANDIDATES = numbered_candidates(range(10))
WINDOWS = pb.Strategy(window_size=2, stride=1)
REQUEST = pb.RerankRequest(query="q", candidates=CANDIDATES, strategy=WINDOWS)
LATE = grpc.StatusCode.DEADLINE_EXCEEDED


def start_call(held: HeldService) -> grpc.Future:
    return held.start_call(candidates=CANDIDATES, strategy=WINDOWS)


def set_measured_throughput(held: HeldService, tokens_per_s: float) -> None:
    async def on_the_event_loop() -> None:
        set_throughput(held.reranker.engine, tokens_per_s)

    held.served.wait(on_the_event_loop())


# --- deadlines ---


@pytest.mark.parametrize("timeout_s", [-1, 0, 0.05])
def test_call_after_a_missed_deadline_succeeds(encoder: Encoder, timeout_s: float) -> None:
    with held_service(encoder) as held:
        assert refusal(lambda: held.stub.Rerank(REQUEST, timeout=timeout_s)).code is LATE
        held.ranker.release.set()
        assert held.stub.Rerank(REQUEST, timeout=TIMEOUT_S).results[0].doc_id == "d9"


def test_max_request_s_limits_the_deadline_of_the_caller(encoder: Encoder) -> None:
    with held_service(encoder, limits={"max_request_s": 0.3}) as held:
        late = refusal(lambda: held.stub.Rerank(REQUEST, timeout=TIMEOUT_S))
    assert (late.code, late.reason) == (LATE, "DEADLINE_EXCEEDED")
    assert "0 windows of sliding(2/1)" in late.message


@pytest.mark.parametrize("windows_done", [0, 3])
def test_partial_answer_arrives_before_the_deadline(encoder: Encoder, windows_done: int) -> None:
    with held_service(encoder, free_batches=windows_done, engine={"answer_margin_s": 19}) as held:
        request = pb.RerankRequest(query="q", candidates=CANDIDATES, strategy=WINDOWS, allow_partial=True)
        reply = held.stub.Rerank(request, timeout=20)
    assert reply.execution.completeness == (pb.COMPLETENESS_PARTIAL if windows_done else pb.COMPLETENESS_NONE)
    assert reply.execution.reason == f"the deadline came after {windows_done} of 9 windows of sliding(2/1)"
    assert reply.execution.windows == windows_done
    position = 9 - windows_done  # the last candidate is the best, and rises by one position per window
    others = [candidate for candidate in range(10) if candidate != 9]
    expected = [*others[:position], 9, *others[position:]]
    assert [result.original_position for result in reply.results] == expected


def test_late_answer_is_an_error_without_allow_partial(encoder: Encoder) -> None:
    with held_service(encoder, free_batches=3) as held:
        assert refusal(lambda: held.stub.Rerank(REQUEST, timeout=0.3)).code is LATE


def test_deadline_that_cannot_be_met_is_refused_on_arrival(encoder: Encoder) -> None:
    """The work takes 14 s, by the length of the texts, and the deadline is in 10 s."""
    with held_service(encoder) as held:
        set_measured_throughput(held, tokens_per_s=10.0)
        late = refusal(lambda: held.stub.Rerank(REQUEST, timeout=10))
    assert (late.code, late.reason) == (LATE, "DEADLINE_EXCEEDED")
    assert "14400 ms of work remain" in late.message
    assert not held.ranker.entered.is_set()


# --- a full queue ---


def test_queue_that_would_make_a_request_late_is_an_overload_with_a_retry_delay(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        first = start_call(held)
        set_measured_throughput(held, tokens_per_s=10.0)
        overload = refusal(lambda: held.stub.Rerank(REQUEST, timeout=25))
        held.ranker.release.set()
        assert len(first.result().results) == 10
    assert (overload.code, overload.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert "180 tokens" in overload.message
    assert overload.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 18


def test_full_queue_is_an_overload_until_a_call_is_cancelled(encoder: Encoder) -> None:
    with held_service(encoder, engine={"max_queue_tokens": 200}) as held:
        first = start_call(held)
        overload = refusal(lambda: held.stub.Rerank(REQUEST, timeout=TIMEOUT_S))
        assert overload.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "180" in overload.message
        assert "200" in overload.message
        assert overload.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 1
        first.cancel()
        wait_for(lambda: not held.reranker.engine._admission.queued_tokens)
        second = held.stub.Rerank.future(REQUEST, timeout=TIMEOUT_S)
        held.ranker.release.set()
        assert len(second.result().results) == 10


def test_cancelled_call_ranks_no_further_windows(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        call = start_call(held)
        call.cancel()
        held.served.wait_until_idle()
        held.ranker.release.set()
        other = pb.RerankRequest(query="q", candidates=CANDIDATES[:2])
        assert [result.doc_id for result in held.stub.Rerank(other, timeout=TIMEOUT_S).results] == ["d1", "d0"]
        assert held.ranker.batches == [1, 1]  # the window that ran when the call was cancelled, and the other call's
