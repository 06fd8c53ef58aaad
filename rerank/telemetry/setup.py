"""Opens the metrics and traces that the settings ask for. What is off costs nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from rerank.errors import ConfigError
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import CallRecord, OnEnd
from rerank.service.in_flight import CallsInFlight

if TYPE_CHECKING:
    from rerank.telemetry.tracing import Tracing

#: Has one line per call; its messages are CallRecords.
_calls_log = logging.getLogger("rerank.calls")


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The observers of the calls of a service: log, metrics and traces.

    Attributes:
        on_end: observes a call that has ended.
        interceptors: for the gRPC server.
        wrap_app: ASGI application → the one to serve over HTTP.
        metrics_address: HOST:PORT of /metrics with the port that was bound; empty without metrics.
    """

    on_end: OnEnd
    interceptors: list[grpc.aio.ServerInterceptor]
    wrap_app: Callable[[Any], Any]
    metrics_address: str


@contextmanager
def telemetry(reranker: AsyncReranker, calls: CallsInFlight) -> Iterator[Telemetry]:
    """Logs calls, and opens the metrics and traces that the configuration of `reranker` asks for.

    Raises:
        ConfigError: the address of the metrics cannot be bound, or a package of the extra `observability` is missing.
    """
    config = reranker.config.telemetry
    log_call: OnEnd = partial(_calls_log.info, "%s")  # a call is made a line only if the log is read
    with ExitStack() as stack:
        try:
            address, observers = "", [log_call]
            if config.metrics is not None:
                address, count = stack.enter_context(_metrics(config.metrics, reranker, calls))
                observers.append(count)
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
            metrics_address=address,
        )


@contextmanager
def _metrics(listen: str, reranker: AsyncReranker, calls: CallsInFlight) -> Iterator[tuple[str, OnEnd]]:
    """Serves /metrics; yields its address, and the function that counts a call. Raises: see `telemetry`."""
    from prometheus_client import start_http_server

    from rerank.telemetry.metrics import Metrics

    metrics = Metrics(reranker, calls)
    reranker.engine.observe_batches(metrics.on_batch)
    host, _, port = listen.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), metrics.registry)
    except (OSError, OverflowError, ValueError) as error:
        problem = f"telemetry.metrics: cannot listen on {listen}: {error}; choose another HOST:PORT"
        raise ConfigError(problem) from error
    try:
        yield f"{host}:{server.server_port}", metrics.on_end
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
