"""Metrics of the service for Prometheus: calls, latencies, batches, queue, refusals and models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Summary
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from rerank import __version__
from rerank.engine.request import ModelPhase, Phase
from rerank.engine.scheduler import Work
from rerank.errors import Overloaded, reason_of
from rerank.models.vector_cache import VectorCache
from rerank.reranking.reranker import AsyncReranker, SearchResult
from rerank.service.call import CallRecord
from rerank.service.limits import CallsInFlight
from rerank.types import Trace

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536, 262_144)
_WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Label of a model that is not configured, so that callers cannot add time series.
_UNKNOWN = "unknown"


class Metrics:
    """The metrics of one service, in a separate registry.

    All are written on the event loop; gauges are read there when a page is written.
    """

    def __init__(self, reranker: AsyncReranker, calls: CallsInFlight) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        gauge = partial(Gauge, namespace="rerank", registry=self.registry)
        self._reranker = reranker
        self._calls = _CallMetrics(self.registry, [model.name for model in reranker.models()])
        self._batches = _BatchMetrics(self.registry)
        engine = reranker.engine
        for name, help_text, read in (  # read for each page, not set at each change: the tokens are a sum over requests
            ("calls_in_flight", "Calls in flight.", lambda: calls.number),
            ("queued_requests", "Admitted requests, with those that are running.", lambda: engine.queued_requests),
            ("queued_tokens", "Tokens that remain of the requests in the queue.", lambda: engine.queued_tokens),
            ("queued_windows", "Windows that wait for a batch.", lambda: engine.waiting_windows),
        ):
            gauge(name, help_text).set_function(read)
        model_up = gauge("model_up", "1 if the model is served, 0 if it failed.", ["model"])
        for model in reranker.models():
            model_up.labels(model.name).set_function(partial(self._is_up, model.name))
        self.registry.register(_VectorCacheCollector(reranker.vector_cache))
        Info("rerank_build", "The version of the service.", registry=self.registry).info({"version": __version__})

    def on_end(self, call: CallRecord) -> None:
        self._calls.count(call)

    def on_batch(self, phase: ModelPhase, batch: Sequence[Work[Any, Any]], seconds: float) -> None:
        """Counts a batch of the engine."""
        self._batches.count(phase, batch, seconds)

    def _is_up(self, name: str) -> float:
        return float(not any(model.problem for model in self._reranker.models() if model.name == name))


class _VectorCacheCollector(Collector):
    """Hits and misses of a vector cache, which other threads count."""

    def __init__(self, cache: VectorCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        description = "Texts of requests to models that read vectors, by whether the vector of the text was known."
        texts = CounterMetricFamily("rerank_text_vectors", description, labels=["result"])
        texts.add_metric(["hit"], self._cache.hits)
        texts.add_metric(["miss"], self._cache.misses)
        yield texts


class _CallMetrics:
    """The metrics of calls and of their answers. `models` are the configured names, the default one first."""

    def __init__(self, registry: CollectorRegistry, models: Sequence[str]) -> None:
        counter = partial(Counter, namespace="rerank", registry=registry)
        histogram = partial(Histogram, namespace="rerank", registry=registry, buckets=_SECONDS)
        self._models = models
        self._requests = counter("requests", "Calls that ended.", ["method", "model", "status"])
        self._seconds = histogram("request_seconds", "Time from a call's arrival to its end.", ["method", "model"])
        self._part_seconds = histogram(
            "request_part_seconds",
            "Time of a part of an answered request: first_stage, feedback, queue, prepare or model.",
            ["part", "model"],
        )
        self._candidates = counter("candidates", "Candidates of answered requests.", ["model"])
        self._answers = counter(
            "answers", "Answers by the part of the list that was ranked.", ["model", "completeness"]
        )
        self._fallbacks = counter("fallbacks", "Answers instead of an error, by its reason.", ["model", "reason"])
        self._truncated = counter("truncated_passages", "Passages too long for the model, of answers.", ["model"])
        self._generated = counter("generated_identifiers", "Identifiers in generated permutations.", ["model"])
        self._repaired = counter("repaired_identifiers", "Repaired identifiers in generated permutations.", ["model"])
        self._kendall_tau = Summary(
            "first_stage_kendall_tau",
            "Kendall's tau of an answer's order with the first stage's; its mean is sum / count.",
            ["model"],
            namespace="rerank",
            registry=registry,
        )
        self._refusals = counter("refusals", "Calls refused by a limit, by what they exceeded.", ["reason"])

    def count(self, call: CallRecord) -> None:
        model = self._model(call)
        self._requests.labels(call.method, model, call.status).inc()
        self._seconds.labels(call.method, model).observe(call.seconds)
        if reason := refusal_reason(call.error):
            self._refusals.labels(reason).inc()
        if call.ranking is not None:
            self._count_answer(call, call.ranking.trace, model)

    def _count_answer(self, call: CallRecord, trace: Trace, model: str) -> None:
        self._answers.labels(model, trace.completeness.value).inc()
        if trace.failure:
            self._fallbacks.labels(model, reason_of(trace.failure)).inc()
        self._truncated.labels(model).inc(len(trace.truncated_doc_ids))
        self._generated.labels(model).inc(trace.generated)
        self._repaired.labels(model).inc(trace.repairs)
        self._candidates.labels(model).inc(call.candidates)
        if trace.kendall_tau is not None:
            self._kendall_tau.labels(model).observe(trace.kendall_tau)
        for part, ms in part_ms(trace, call.search).items():
            self._part_seconds.labels(part, model).observe(ms / 1000)

    def _model(self, call: CallRecord) -> str:
        """The model of a call; the default one if it names none, and empty if it needs none."""
        if (name := call.model) is None:
            return ""
        return (name or self._models[0]) if name in ("", *self._models) else _UNKNOWN


class _BatchMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["model", "phase"]
        counter = partial(Counter, namespace="rerank", registry=registry, labelnames=labels)
        histogram = partial(Histogram, namespace="rerank", registry=registry)
        self._seconds = histogram("batch_seconds", "Time of a batch on the model's thread.", labels, buckets=_SECONDS)
        self._tokens = histogram(
            "batch_tokens", "Tokens that a batch computed; a cached text has none.", labels, buckets=_TOKENS
        )
        self._windows = histogram("batch_windows", "Windows of a ranked batch.", ["model"], buckets=_WINDOWS)
        self._after_end = counter(
            "batches_after_cancellation", "Batches of requests that were cancelled or late when the batch ended."
        )
        self._tokens_after_end = counter("tokens_after_cancellation", "Tokens of such requests in these batches.")

    def count(self, phase: ModelPhase, batch: Sequence[Work[Any, Any]], seconds: float) -> None:
        labels = phase.model, phase.phase.value
        self._seconds.labels(*labels).observe(seconds)
        self._tokens.labels(*labels).observe(sum(work.tokens for work in batch))
        if phase.phase is Phase.RANK:
            self._windows.labels(phase.model).observe(len(batch))
        if ended := [work for work in batch if work.future.cancelled()]:
            self._after_end.labels(*labels).inc(len({work.request for work in ended}))
            self._tokens_after_end.labels(*labels).inc(sum(work.tokens for work in ended))


def part_ms(trace: Trace, search: SearchResult | None) -> dict[str, float]:
    """The milliseconds of each part of an answered request.

    `feedback` is what relevance feedback takes before the last ranking: first ranking, update and second retrieval.
    """
    parts = {"queue": trace.queue_ms, "prepare": trace.prepare_ms, "model": trace.model_ms}
    if search is not None:
        parts["first_stage"] = search.first_stage_ms
        if (feedback := search.feedback) is not None:
            parts["feedback"] = feedback.ms
    return parts


def refusal_reason(error: Exception | None) -> str:
    """The name of the limit that refused a call; empty if none did."""
    if isinstance(error, Overloaded):
        return error.metadata.get("exceeded", "other")
    return ""
