"""Metrics: what /metrics reports after calls, refusals, cancellations and batches."""

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from urllib.error import HTTPError

import grpc
import pytest

from rerank.access.keys import CallerLimits, add_key
from rerank.reranking.reranker import SearchResult
from rerank.retrieval.feedback import FeedbackReport
from rerank.telemetry.metrics import part_ms
from rerank.types import FirstStage, Ranking, ScoreKind
from rerank.v1 import rerank_pb2 as pb
from tests.fakes import NumberRanker, rambling_ranker
from tests.http_client import HttpClient
from tests.serving import (
    HTTP,
    METRICS,
    TIMEOUT_S,
    Served,
    held_service,
    numbered_candidates,
    refusal,
    running_service,
    wait_for,
)
from tests.traces import trace_of


@pytest.fixture
def service() -> Iterator[Served]:
    with running_service({"number": NumberRanker()}, telemetry=METRICS) as served:
        yield served


def request(n: int, **fields: object) -> pb.RerankRequest:
    return pb.RerankRequest(query="q", candidates=numbered_candidates(range(n)), **fields)


def test_answer_is_counted_with_its_times_and_its_work(service):
    execution = service.stub.Rerank(request(30), timeout=TIMEOUT_S).execution
    wait_for(lambda: service.metric("rerank_requests_total") == 1)
    assert service.metric("rerank_requests_total", method="Rerank", model="number", status="OK") == 1
    assert service.metric("rerank_candidates_total", model="number") == 30
    assert service.metric("rerank_answers_total", model="number", completeness="full") == 1
    assert service.metric("rerank_batch_windows_sum", model="number") == execution.windows == 2
    assert service.metric("rerank_batch_tokens_sum", model="number", phase="rank") == execution.tokens
    assert service.metric("rerank_batch_seconds_count", phase="prepare") == 2, "all passages, and each window"
    assert service.metric("rerank_request_seconds_count", method="Rerank", model="number") == 1
    model_s = service.metric("rerank_request_part_seconds_sum", part="model", model="number")
    assert model_s == pytest.approx(execution.model_ms / 1000)


def test_share_of_repaired_places_is_counted():
    with running_service({"number": NumberRanker(), "rambling": rambling_ranker()}, telemetry=METRICS) as served:
        for model in ("rambling", "number"):
            served.stub.Rerank(request(30, model=model), timeout=TIMEOUT_S)
        wait_for(lambda: served.metric("rerank_requests_total") == 2)
        for name in ("rerank_generated_identifiers_total", "rerank_repaired_identifiers_total"):
            assert (served.metric(name, model="rambling"), served.metric(name, model="number")) == (40, 0)


def test_idle_service_reports_an_empty_queue_its_models_and_its_process(service):
    for name in ("rerank_calls_in_flight", "rerank_queued_requests", "rerank_queued_tokens", "rerank_queued_windows"):
        assert service.metric(name) == 0
    assert service.metric("rerank_model_up", model="number") == 1
    assert service.metric("rerank_build_info") == 1
    assert service.metric("process_open_fds") > 0


def test_callers_cannot_add_time_series_by_unknown_models(service):
    for name in ("a", "b", "c"):
        refusal(lambda name=name: service.stub.Rerank(request(1, model=name), timeout=TIMEOUT_S))
    wait_for(lambda: service.metric("rerank_requests_total") == 3)
    assert service.metric("rerank_requests_total", model="unknown", status="NOT_FOUND") == 3


def test_queue_and_cancellation_are_counted():
    with held_service(telemetry=METRICS, engine={"max_batch_tokens": 1}) as held:
        call = held.start_call(candidates=numbered_candidates(range(100)))
        assert held.metric("rerank_calls_in_flight") == 1
        assert held.metric("rerank_queued_requests") == 1  # measured when its passages were prepared
        assert held.metric("rerank_queued_tokens") > 0
        call.cancel()
        wait_for(lambda: held.metric("rerank_requests_total", status="CANCELLED", model="number") == 1)
        held.ranker.release.set()
        wait_for(lambda: held.metric("rerank_batches_after_cancellation_total", phase="rank") == 1)
        assert held.metric("rerank_tokens_after_cancellation_total", phase="rank") == 200
        assert held.metric("rerank_batch_windows_count") == 1
        assert held.metric("rerank_queued_requests") == 0


def test_refused_call_is_counted_by_the_limit_that_it_exceeds():
    with held_service(telemetry=METRICS, limits={"max_calls": 1}) as held:
        call = held.start_call(candidates=numbered_candidates(range(3)))
        refused = refusal(lambda: held.stub.Rerank(request(1), timeout=TIMEOUT_S))
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        wait_for(lambda: held.metric("rerank_refusals_total", reason="max_calls") == 1)
        assert held.metric("rerank_requests_total", status="RESOURCE_EXHAUSTED") == 1
        held.ranker.release.set()
        call.result(TIMEOUT_S)


def test_feedback_is_what_comes_before_the_last_ranking():
    report = FeedbackReport("", ms=7)
    trace = trace_of(queue_ms=16, prepare_ms=32, model_ms=64)
    search = SearchResult(Ranking((), ScoreKind.RANK, trace), FirstStage.DENSE, 0, first_stage_ms=128, feedback=report)
    assert part_ms(trace, search) == {"queue": 16, "prepare": 32, "model": 64, "first_stage": 128, "feedback": 7}
    assert part_ms(trace_of(), None) == {"queue": 0, "prepare": 0, "model": 0}


def test_connections_that_send_nothing_leave_room_for_prometheus(monkeypatch):
    monkeypatch.setattr("rerank.ports.connections._MAX_CONNECTIONS", 20)
    with running_service(telemetry=METRICS) as served, ExitStack() as stack:
        host, _, port = served.server.metrics_address.rpartition(":")
        threads = threading.active_count()
        for _ in range(30):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert served.metric("rerank_calls_in_flight") == 0
        assert threading.active_count() == threads


def test_page_is_for_addresses_and_the_names_of_the_settings(tmp_path):
    """A page of evil.example, whose name was made to point at this machine, could read it; keys do not protect it.

    Prometheus calls a pod by its address, and a service of Compose by its name.
    """
    keys = tmp_path / "keys.yaml"
    add_key(keys, "a", CallerLimits())
    http = HTTP | {"allowed_hosts": ["rerank"]}
    for further, other in (({"keys": keys, "http": http}, 400), ({"insecure": True}, 200)):
        with running_service(telemetry=METRICS, **further) as served:
            client = HttpClient(served.server.metrics_address)
            hosts = {"10.4.0.17:9464": 200, "rerank:9464": 200, "localhost": 200, "evil.example": other}
            for host, status in hosts.items():
                reply = client.send("GET", "/metrics", headers={"host": host})
                assert (reply.status, b"rerank_requests" in reply.body) == (status, status == 200)


def test_readers_take_a_tenth_of_the_event_loop(monkeypatch):
    """Eight readers that asked again and again had it nearly alone: a health check took 1.8 s."""
    starts_s = list[float]()

    def slow_page(_: object) -> bytes:
        starts_s.append(time.perf_counter())
        time.sleep(0.02)
        return b""

    monkeypatch.setattr("rerank.ports.http.metrics.generate_latest", slow_page)
    with running_service(telemetry=METRICS) as served, ThreadPoolExecutor(3) as readers:
        assert [*readers.map(lambda _: served.metrics(), range(9))] == [""] * 9
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"http://{served.server.metrics_address}/other", timeout=TIMEOUT_S)
    assert len(starts_s) > 2
    assert min(later - before for before, later in pairwise(starts_s)) >= 0.2
