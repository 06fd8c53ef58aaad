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
from prometheus_client.parser import text_string_to_metric_families

from rerank.access.keys import CallerLimits, add_key
from rerank.config import EngineConfig, HttpConfig, Limits, TelemetryConfig
from rerank.ports import connections
from rerank.ports.http import metrics
from rerank.reranking.reranker import SearchResult
from rerank.retrieval.feedback import FeedbackReport
from rerank.telemetry.metrics import part_ms
from rerank.types import FirstStage, Ranking, ScoreKind
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker, rambling_ranker
from tests.http_client import HttpClient
from tests.serving import (
    TIMEOUT_S,
    Served,
    held_service,
    numbered_candidates,
    refusal,
    reranker_of,
    running_service,
    serving,
    wait_for,
)
from tests.traces import trace_of

METRICS = TelemetryConfig(metrics="127.0.0.1:0")


def value(served: Served, name: str, **labels: str) -> float:
    """The sum of the samples of this name that have these labels; 0 if there is none."""
    families = text_string_to_metric_families(scraped(served))
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def scraped(served: Served) -> str:
    """The page that Prometheus reads."""
    with urllib.request.urlopen(f"http://{served.server.metrics_address}/metrics", timeout=TIMEOUT_S) as page:
        return page.read().decode()


@pytest.fixture
def service() -> Iterator[Served]:
    with running_service({"number": NumberRanker()}, telemetry=METRICS) as served:
        yield served


@pytest.fixture
def stub(service: Served) -> Iterator[RerankServiceStub]:
    with grpc.insecure_channel(service.address) as channel:
        yield RerankServiceStub(channel)


def request(n: int, **fields: object) -> pb.RerankRequest:
    return pb.RerankRequest(query="q", candidates=numbered_candidates(range(n)), **fields)


def test_answer_is_counted_with_its_times_and_its_work(service, stub):
    execution = stub.Rerank(request(30), timeout=TIMEOUT_S).execution
    wait_for(lambda: value(service, "rerank_requests_total") == 1)
    assert value(service, "rerank_requests_total", method="Rerank", model="number", status="OK") == 1
    assert value(service, "rerank_candidates_total", model="number") == 30
    assert value(service, "rerank_answers_total", model="number", completeness="full") == 1
    assert value(service, "rerank_batch_windows_sum", model="number") == execution.windows == 2
    assert value(service, "rerank_batch_tokens_sum", model="number", phase="rank") == execution.tokens
    assert value(service, "rerank_batch_seconds_count", phase="prepare") == 2, "all passages, and each window"
    assert value(service, "rerank_request_seconds_count", method="Rerank", model="number") == 1
    model_s = value(service, "rerank_request_part_seconds_sum", part="model", model="number")
    assert model_s == pytest.approx(execution.model_ms / 1000)


def test_share_of_repaired_places_is_counted():
    reranker = reranker_of({"number": NumberRanker(), "rambling": rambling_ranker()}, telemetry=METRICS)
    with serving(reranker) as served, grpc.insecure_channel(served.address) as channel:
        for model in ("rambling", "number"):
            RerankServiceStub(channel).Rerank(request(30, model=model), timeout=TIMEOUT_S)
        wait_for(lambda: value(served, "rerank_requests_total") == 2)
        for name in ("rerank_generated_identifiers_total", "rerank_repaired_identifiers_total"):
            assert (value(served, name, model="rambling"), value(served, name, model="number")) == (40, 0)


def test_idle_service_reports_an_empty_queue_its_models_and_its_process(service):
    for name in ("rerank_calls_in_flight", "rerank_queued_requests", "rerank_queued_tokens", "rerank_queued_windows"):
        assert value(service, name) == 0
    assert value(service, "rerank_model_up", model="number") == 1
    assert value(service, "rerank_build_info") == 1
    assert value(service, "process_open_fds") > 0


def test_callers_cannot_add_time_series_by_unknown_models(service, stub):
    for name in ("a", "b", "c"):
        refusal(lambda name=name: stub.Rerank(request(1, model=name), timeout=TIMEOUT_S))
    wait_for(lambda: value(service, "rerank_requests_total") == 3)
    assert value(service, "rerank_requests_total", model="unknown", status="NOT_FOUND") == 3


def test_queue_and_cancellation_are_counted():
    with held_service(telemetry=METRICS, engine=EngineConfig(max_batch_tokens=1)) as held:
        call = held.start_call(candidates=numbered_candidates(range(100)))
        assert value(held, "rerank_calls_in_flight") == 1
        assert value(held, "rerank_queued_requests") == 1  # measured when its passages were prepared
        assert value(held, "rerank_queued_tokens") > 0
        call.cancel()
        wait_for(lambda: value(held, "rerank_requests_total", status="CANCELLED", model="number") == 1)
        held.ranker.release.set()
        wait_for(lambda: value(held, "rerank_batches_after_cancellation_total", phase="rank") == 1)
        assert value(held, "rerank_tokens_after_cancellation_total", phase="rank") == 200
        assert value(held, "rerank_batch_windows_count") == 1
        assert value(held, "rerank_queued_requests") == 0


def test_refused_call_is_counted_by_the_limit_that_it_exceeds():
    with held_service(telemetry=METRICS, limits=Limits(max_calls=1)) as held:
        call = held.start_call(candidates=numbered_candidates(range(3)))
        refused = refusal(lambda: held.stub.Rerank(request(1), timeout=TIMEOUT_S))
        assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        wait_for(lambda: value(held, "rerank_refusals_total", reason="max_calls") == 1)
        assert value(held, "rerank_requests_total", status="RESOURCE_EXHAUSTED") == 1
        held.ranker.release.set()
        call.result(TIMEOUT_S)


def test_feedback_is_what_comes_before_the_last_ranking():
    report = FeedbackReport("", ms=7)
    trace = trace_of(queue_ms=16, prepare_ms=32, model_ms=64)
    search = SearchResult(Ranking((), ScoreKind.RANK, trace), FirstStage.DENSE, 0, first_stage_ms=128, feedback=report)
    assert part_ms(trace, search) == {"queue": 16, "prepare": 32, "model": 64, "first_stage": 128, "feedback": 7}
    assert part_ms(trace_of(), None) == {"queue": 0, "prepare": 0, "model": 0}


def test_connections_that_send_nothing_leave_room_for_prometheus(monkeypatch):
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 20)
    with running_service({"number": NumberRanker()}, telemetry=METRICS) as served, ExitStack() as stack:
        host, _, port = served.server.metrics_address.rpartition(":")
        threads = threading.active_count()
        for _ in range(30):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert value(served, "rerank_calls_in_flight") == 0
        assert threading.active_count() == threads


def test_page_is_for_addresses_and_the_names_of_the_settings(tmp_path):
    """A page of evil.example, whose name was made to point at this machine, could read it; keys do not protect it.

    Prometheus calls a pod by its address, and a service of Compose by its name.
    """
    keys = tmp_path / "keys.yaml"
    add_key(keys, "a", CallerLimits())
    http = HttpConfig(listen="127.0.0.1:0", allowed_hosts=("rerank",))
    for further, other in (({"keys": keys, "http": http}, 400), ({"insecure": True}, 200)):
        with running_service({"number": NumberRanker()}, telemetry=METRICS, **further) as served:
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

    monkeypatch.setattr(metrics, "generate_latest", slow_page)
    reranker = reranker_of({"number": NumberRanker()}, telemetry=METRICS)
    with serving(reranker) as served, ThreadPoolExecutor(3) as readers:
        assert [*readers.map(lambda _: scraped(served), range(9))] == [""] * 9
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"http://{served.server.metrics_address}/other", timeout=TIMEOUT_S)
    assert len(starts_s) > 2
    assert min(later - before for before, later in pairwise(starts_s)) >= 0.2
