"""Metrics and traces of a running service, as its settings ask for. What is off costs nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from rerank.errors import ConfigError
from rerank.reranking.reranker import AsyncReranker
from rerank.service.calls import CallRecord, CallsInFlight, OnEnd

#: Has one line per call; its messages are CallRecords.
_calls_log = logging.getLogger("rerank.calls")


@dataclass
class Telemetry:
    """The observers of the calls of a service: log, metrics and traces.

    Attributes:
        on_end: called when a call has ended.
        interceptors: for the gRPC server.
        wrap_app: ASGI application → the one to serve over HTTP.
        metrics_address: HOST:PORT of /metrics with the port that was bound; empty without metrics.
    """

    on_end: OnEnd
    interceptors: list[grpc.aio.ServerInterceptor] = field(default_factory=list)
    wrap_app: Callable[[Any], Any] = lambda app: app
    metrics_address: str = ""


@contextmanager
def telemetry(reranker: AsyncReranker, calls: CallsInFlight) -> Iterator[Telemetry]:
    """The log of calls, and the metrics and traces that the configuration of `reranker` asks for.

    Raises:
        ConfigError: the address of the metrics cannot be bound, or a package of the extra `observability` is missing.
    """
    config = reranker.config.telemetry
    log_call: OnEnd = partial(_calls_log.info, "%s")  # a call is made a line only if the log is read
    result, observers = Telemetry(log_call), [log_call]
    with ExitStack() as stack:
        try:
            if config.metrics is not None:
                from rerank.telemetry.metrics import Metrics
                from rerank.telemetry.metrics_server import metrics_server

                metrics = Metrics(reranker, calls)
                reranker.engine.observe_work(on_batch=metrics.on_batch)
                result.metrics_address = stack.enter_context(metrics_server(config.metrics, metrics.registry))
                observers.append(metrics.on_end)
            if config.traces:
                from rerank.telemetry.tracing import Tracing, otlp_processor

                tracing = Tracing(stack.enter_context(otlp_processor()))
                reranker.engine.observe_work(on_results=tracing.on_results)
                result.interceptors.append(tracing.interceptor)
                result.wrap_app = tracing.traced_app
                observers.append(tracing.on_end)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"telemetry needs {error.name}, which is not installed; install rerank-listwise[observability]"
            ) from error
        if len(observers) > 1:
            result.on_end = partial(_observe_all, observers)
        yield result


def _observe_all(observers: Sequence[OnEnd], call: CallRecord) -> None:
    for observe in observers:
        observe(call)
