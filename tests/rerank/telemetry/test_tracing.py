"""Traces: the spans of calls as an OpenTelemetry collector receives them."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rerank.v1 import rerank_pb2 as pb
from tests.fakes import NumberRanker
from tests.serving import TIMEOUT_S, free_port, http_service, numbered_candidates, running_service, wait_for

TRACES = {"traces": True}
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def attributes(described: Any) -> dict[str, Any]:
    """The attributes of a span or a resource."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in described.attributes}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OpenTelemetry collector that keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        for of_resource in request.resource_spans:
            self.services.add(attributes(of_resource.resource)["service.name"])
            self.spans += [span for of_scope in of_resource.scope_spans for span in of_scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector for services that start within the test; it has all spans once they have stopped."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    yield collector
    server.stop(None).wait()


def test_call_has_a_span_with_its_preparation_and_each_window_inside(collector):
    request = pb.RerankRequest(query="secret", candidates=numbered_candidates(range(30)))
    with running_service({"number": NumberRanker()}, telemetry=TRACES) as served:
        metadata = [("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01"), ("x-request-id", "r-1")]
        served.stub.Rerank(request, timeout=TIMEOUT_S, metadata=metadata)
    (call,) = collector.named("rerank.v1.RerankService/Rerank") or collector.named("/rerank.v1.RerankService/Rerank")
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert attributes(call)["rerank.request_id"] == "r-1"
    assert attributes(call)["rerank.windows"] == 2
    inside = [span for pair in zip(*map(collector.named, ("prepare", "window")), strict=True) for span in pair]
    assert [span.name for span in inside] == ["prepare", "window", "prepare", "window"]
    times = [call.start_time_unix_nano]
    for span in inside:
        assert (span.trace_id, span.parent_span_id) == (call.trace_id, call.span_id)
        assert attributes(span)["rerank.model"] == "number"
        times += [span.start_time_unix_nano, span.end_time_unix_nano]
    slack_ns = 2_000_000  # of two clocks
    assert all(after >= before - slack_ns for before, after in pairwise([*times, call.end_time_unix_nano]))
    assert collector.services == {"rerank"}
    assert "secret" not in str(collector.spans)


@pytest.fixture
def missing_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a collector where nobody listens."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.mark.usefixtures("missing_collector")
def test_missing_collector_is_told_once(caplog, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with http_service(telemetry=TRACES) as served:
        for _ in range(4):
            assert served.http.post("/rerank", {"query": "q", "texts": ["1"]}).status == 200
            time.sleep(0.2)
        wait_for(lambda: any("traces do not reach" in message for message in caplog.messages))
    of_traces = [record for record in caplog.records if record.name.startswith(("opentelemetry", "rerank.telemetry"))]
    assert len(of_traces) == 1


@pytest.mark.usefixtures("missing_collector")
def test_missing_collector_does_not_delay_the_end():
    with http_service(telemetry=TRACES) as served:
        assert served.http.post("/rerank", {"query": "q", "texts": ["1"]}).status == 200
        time.sleep(0.2)  # the spans are on their way
        start_s = time.perf_counter()
    assert time.perf_counter() - start_s < 5


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("header", ["baggage", "tracestate"])
def test_headers_of_strangers_do_not_reach_the_log(caplog, header):
    with http_service(telemetry=TRACES) as served:
        sent = {header: ",".join(["secret of a stranger"] * 2000), "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
        assert served.http.post("/rerank", {"query": "q", "texts": ["1"]}, **sent).status == 200
    assert "secret" not in caplog.text
