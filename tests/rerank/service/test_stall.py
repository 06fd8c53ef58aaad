"""A service process that is suspended for a while, as on a stalled machine, admits requests again soon after."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import grpc
import pytest

from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, service_process

#: How long the process is suspended, and how long callers may be rejected after it.
STALL_S, RECOVERY_S = 2.5, 2.0
REQUEST = pb.RerankRequest(
    query="how long does a flea live",
    candidates=[pb.Candidate(doc_id=f"d{number}", text=f"{number} fleas in winter " * 10) for number in range(5)],
)


def stall_in_a_batch(process: subprocess.Popen[str], stub: RerankServiceStub, usual_s: float) -> bool:
    """Suspends the process while a call without a deadline is in work. True if the stall fell into one of its batches.

    Returns once that call is answered, so that nothing runs that could correct the measured rate.
    """
    call = stub.Rerank.future(REQUEST)
    time.sleep(usual_s / 2)
    process.send_signal(signal.SIGSTOP)
    time.sleep(STALL_S)
    process.send_signal(signal.SIGCONT)
    execution = call.result(STALL_S + TIMEOUT_S).execution
    return max(execution.prepare_ms, execution.model_ms) >= STALL_S * 1000


def outcome(stub: RerankServiceStub, timeout_s: float) -> str:
    """ "answered", "late" for a request that was admitted and missed its deadline, or "rejected"."""
    try:
        stub.Rerank(REQUEST, timeout=timeout_s)
    except grpc.RpcError as error:
        is_rejected = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED or "work remain" in (error.details() or "")
        return "rejected" if is_rejected else "late"
    return "answered"


@pytest.mark.slow
def test_requests_are_admitted_soon_after_a_stall(tmp_path: Path, checkpoint: Path) -> None:
    model = {"name": "pe-rank", "ranker": "pe-rank", "path": str(checkpoint)}
    with (
        service_process(tmp_path, models=[model]) as service,
        grpc.insecure_channel(service.address) as channel,
    ):
        stub = RerankServiceStub(channel)
        usual_s = min(stub.Rerank(REQUEST).execution.total_ms for _ in range(4)) / 1000
        assert any(stall_in_a_batch(service.process, stub, usual_s) for _ in range(3))
        well_s = time.monotonic()
        outcomes: list[tuple[float, str]] = []
        while time.monotonic() < well_s + RECOVERY_S + 1:
            outcomes.append((round(time.monotonic() - well_s, 2), outcome(stub, max(0.5, 5 * usual_s))))
            time.sleep(0.1)
    print(f"a request takes {usual_s:.2f} s; outcomes after a stall of {STALL_S} s: {outcomes}")
    later = [outcome for start_s, outcome in outcomes if start_s >= RECOVERY_S]
    assert "rejected" not in later
    assert "answered" in later
