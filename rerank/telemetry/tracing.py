"""Traces of calls with OpenTelemetry: a span for each call, and in it the first stage, preparation and each window."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from rerank.engine.request import ModelPhase, Phase
from rerank.engine.scheduler import TimedResult
from rerank.service.call import CallRecord
from rerank.telemetry.logs import costs
from rerank.util.proxies import channel_options

log = logging.getLogger(__name__)

#: Time to send the last spans when the service ends, after its last call.
_FLUSH_S = 2.0
_SERVICE_NAME_VARIABLE = "OTEL_SERVICE_NAME"
#: Names of the spans inside a call.
_SPAN_NAMES = {Phase.PREPARE: "prepare", Phase.RANK: "window"}


class Tracing:
    """Traces the calls of one service; their spans are children of the callers' spans (W3C trace context).

    The spans inside a call are made from recorded times, after the work is done.

    Args:
        processor: receives the spans.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        service = {} if _SERVICE_NAME_VARIABLE in os.environ else {SERVICE_NAME: "rerank"}
        provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
        provider.add_span_processor(processor)
        self._provider = provider
        self._tracer = provider.get_tracer("rerank")
        self.interceptor: grpc.aio.ServerInterceptor = aio_server_interceptor(
            tracer_provider=provider, filter_=filters.negate(filters.health_check())
        )

    def traced_app(self, app: Any) -> Any:
        """An ASGI application that calls `app` and makes a span of each request, except for health checks.

        OpenTelemetry's span of a request ends with the last byte sent, which is before `on_end`. So there is a second
        span `answer` inside it, to which `on_end` adds.
        """

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            if not trace.get_current_span().is_recording():
                await app(scope, receive, send)
                return
            with self._tracer.start_as_current_span("answer"):
                await app(scope, receive, send)

        return OpenTelemetryMiddleware(
            answer, excluded_urls="/health$", tracer_provider=self._provider, exclude_spans=["receive", "send"]
        )

    def on_results(self, phase: ModelPhase, submitted_s: float, results: Sequence[TimedResult[Any]]) -> None:
        """Adds a span to the call for each result, from the start to the end of its batch.

        Args:
            phase: the model, and whether it prepared passages or ranked windows.
            submitted_s: time of `time.perf_counter` at which the work was queued.
            results: results of ranked windows, or of a prepared slice of passages.
        """
        if not trace.get_current_span().is_recording():  # a call that is not sampled
            return
        for done in results:
            start_s = submitted_s + done.queue_ms / 1000
            attributes = {"rerank.model": phase.model, "rerank.queue_ms": done.queue_ms}
            self._add(_SPAN_NAMES[phase.phase], start_s, start_s + done.batch_ms / 1000, attributes)

    def on_end(self, call: CallRecord) -> None:
        """Adds the request's ID and the costs in its reply to the span of the call, and a span of the first stage."""
        span = trace.get_current_span()
        if not span.is_recording():
            return
        span.set_attribute("rerank.request_id", call.request_id)
        if call.ranking is not None:
            span.set_attributes({f"rerank.{name}": value for name, value in costs(call.ranking.trace).items()})
        if call.search is not None:
            start_s = time.perf_counter() - call.seconds
            attributes = {"rerank.hits": call.search.hits}
            self._add("first_stage", start_s, start_s + call.search.first_stage_ms / 1000, attributes)

    def _add(self, name: str, start_s: float, end_s: float, attributes: dict[str, Any]) -> None:
        span = self._tracer.start_span(name, start_time=_epoch_ns(start_s), attributes=attributes)
        span.end(_epoch_ns(end_s))


class _Exporter(OTLPSpanExporter):
    """Sends spans by OTLP over gRPC. Logs one warning when spans begin to be lost, and not one for each export."""

    _is_lost = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        is_lost = result is not SpanExportResult.SUCCESS
        if is_lost and not self._is_lost:
            log.warning("traces do not reach %s and are lost; see OTEL_EXPORTER_OTLP_ENDPOINT", self._endpoint)
        self._is_lost = is_lost
        return result


@contextmanager
def otlp_processor() -> Iterator[SpanProcessor]:
    """Sends spans to the collector that OpenTelemetry's environment variables name.

    The spans that are left when the block ends are sent for at most 2 s more.
    """
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # its warnings quote headers that strangers send
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # `_Exporter` logs one warning instead
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    direct: Any = tuple(channel_options((endpoint or "localhost:4317").rstrip("/")))
    exporter = _Exporter(channel_options=direct)
    processor = BatchSpanProcessor(exporter)
    try:
        yield processor
    finally:
        end = Timer(_FLUSH_S, exporter.shutdown)  # otherwise the processor waits until its exporter gives up
        end.start()
        processor.shutdown()
        end.cancel()


def _epoch_ns(seconds: float) -> int:
    """A time of `time.perf_counter` as nanoseconds since 1970."""
    return time.time_ns() - int((time.perf_counter() - seconds) * 1e9)
