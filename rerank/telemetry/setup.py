"""Opens the metrics and traces that the settings ask for. Others cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from rerank.errors import ConfigError
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import CallRecord, OnEnd
from rerank.service.limits import CallsInFlight
from rerank.telemetry.logs import CallLog

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from rerank.telemetry.metrics import Metrics
    from rerank.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The observers of the calls of a service: log, metrics and traces.

    Attributes:
        on_end: observes a call that has ended.
        interceptors: for the gRPC server.
        wrap_app: ASGI application → the application to serve, such as one that traces its requests.
        metrics: the registry of the metrics; None without metrics.
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
    log_call: OnEnd = CallLog().on_end
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


def _observe_all(observers: Sequence[OnEnd], call: CallRecord) -> None:
    for observe in observers:
        observe(call)
