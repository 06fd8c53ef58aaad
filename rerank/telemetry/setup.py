"""Opens the metrics and traces that the settings ask for. What is off costs nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from rerank.errors import ConfigError, Unauthenticated
from rerank.reranking.reranker import AsyncReranker
from rerank.service.limits import CallsInFlight
from rerank.service.record import CallRecord, OnEnd
from rerank.telemetry.logs import CALLS, CountedLog

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from rerank.telemetry.metrics import Metrics
    from rerank.telemetry.tracing import Tracing

#: Has one line per call; its messages are CallRecords.
_calls_log = logging.getLogger(CALLS)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The observers of the calls of a service: log, metrics and traces.

    Attributes:
        on_end: observes a call that has ended.
        interceptors: for the gRPC server.
        wrap_app: ASGI application → the one to serve over HTTP.
        metrics: the metrics to show; None without metrics.
    """

    on_end: OnEnd
    interceptors: list[grpc.aio.ServerInterceptor]
    wrap_app: Callable[[Any], Any]
    metrics: CollectorRegistry | None


@contextmanager
def telemetry(reranker: AsyncReranker, calls: CallsInFlight) -> Iterator[Telemetry]:
    """Logs calls, and opens the metrics and traces that the configuration of `reranker` asks for.

    Raises:
        ConfigError: a package of the extra `observability` is missing.
    """
    config = reranker.config.telemetry
    log_call: OnEnd = _log_of_calls()
    with ExitStack() as stack:
        try:
            metrics, observers = _metrics(reranker, calls) if config.metrics else None, [log_call]
            if metrics is not None:
                observers.append(metrics.on_end)
            tracing = stack.enter_context(_tracing(reranker)) if config.traces else None
            if tracing is not None:
                observers.append(tracing.on_end)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"telemetry needs {error.name}, which is not installed; install rerank-listwise[observability]"
            ) from error
        yield Telemetry(
            on_end=log_call if len(observers) == 1 else partial(_observe_all, observers),
            interceptors=[tracing.interceptor] if tracing else [],
            wrap_app=tracing.traced_app if tracing else lambda app: app,
            metrics=metrics.registry if metrics else None,
        )


def _metrics(reranker: AsyncReranker, calls: CallsInFlight) -> Metrics:
    from rerank.telemetry.metrics import Metrics

    metrics = Metrics(reranker, calls)
    reranker.engine.observe_batches(metrics.on_batch)
    return metrics


@contextmanager
def _tracing(reranker: AsyncReranker) -> Iterator[Tracing]:
    """Sends traces while the block runs."""
    from rerank.telemetry.tracing import Tracing, otlp_processor

    with otlp_processor() as processor:
        tracing = Tracing(processor)
        reranker.engine.observe_results(tracing.on_results)
        yield tracing


def _log_of_calls() -> OnEnd:
    """Logs calls. Calls without a valid key, or cancelled before they were read, are only counted, once a second.

    Anyone may send thousands of them a second.
    """
    refused = CountedLog("{} calls had no valid key", logging.INFO)
    cancelled = CountedLog("{} calls were cancelled before they were read", logging.INFO)

    def log_call(call: CallRecord) -> None:
        if isinstance(call.error, Unauthenticated):
            refused.add(1, f"the last of them by {call.peer}")
        elif call.is_cancelled and call.request is None:
            cancelled.add(1, f"the last of them by {call.peer}")
        else:
            _calls_log.info("%s", call)  # a call is made a line only if the log is read

    return log_call


def _observe_all(observers: Sequence[OnEnd], call: CallRecord) -> None:
    for observe in observers:
        observe(call)
