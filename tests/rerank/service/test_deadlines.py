"""Admission, deadlines, partial answers and cancelled calls over a real socket."""

from __future__ import annotations

import grpc
import pytest

from rerank.models.encoder import Encoder
from rerank.v1 import rerank_pb2 as pb
from tests.serving import TIMEOUT_S, HeldService, held_service, numbered_candidates, refusal

#: Nine windows of 20 tokens each.
CANDIDATES = numbered_candidates(range(10))
WINDOWS = pb.Strategy(window_size=2, stride=1)
REQUEST = pb.RerankRequest(query="q", candidates=CANDIDATES, strategy=WINDOWS)
LATE = grpc.StatusCode.DEADLINE_EXCEEDED


def start_call(held: HeldService) -> grpc.Future:
    return held.start_call(candidates=CANDIDATES, strategy=WINDOWS)


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


# --- a full queue ---


def test_cancelled_call_ranks_no_further_windows(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        call = start_call(held)
        call.cancel()
        held.served.wait_until_idle()
        held.ranker.release.set()
        other = pb.RerankRequest(query="q", candidates=CANDIDATES[:2])
        assert [result.doc_id for result in held.stub.Rerank(other, timeout=TIMEOUT_S).results] == ["d1", "d0"]
        assert held.ranker.batches == [1, 1]  # the window that ran when the call was cancelled, and the other call's
