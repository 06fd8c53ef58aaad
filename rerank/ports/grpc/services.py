"""The services of the gRPC port: RerankService, health checks and reflection, as handlers of its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from rerank.names import SERVICE
from rerank.ports.grpc.handlers import stream_handler, unary_handlers, watch_handler
from rerank.ports.grpc.rerank_stream import STREAM, request_stream_handler
from rerank.ports.health import HealthServicer
from rerank.ports.message_methods import MessageMethods, health_methods, parser, rerank_methods
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import OnEnd
from rerank.service.in_flight import CallsInFlight

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]


def add_services(
    server: grpc.aio.Server,
    reranker: AsyncReranker,
    calls: CallsInFlight,
    on_end: OnEnd,
    health: HealthServicer,
    hang_up: Callable[[str], None],
) -> None:
    """Registers RerankService, the health checks, and reflection if the settings want it.

    Args:
        server: has a port, and was not started.
        reranker: answers the requests.
        calls: limits of calls in flight, and the keys.
        on_end: called when a request has ended.
        health: answers the health checks, which need no key.
        hang_up: ends the connection of a client.
    """
    config = reranker.config
    stream = request_stream_handler(MessageMethods(reranker, calls), calls, on_end, hang_up)
    handlers = unary_handlers(rerank_methods(reranker, calls, on_end), hang_up) | {STREAM: stream}
    server.add_registered_method_handlers(SERVICE, handlers)
    calls = CallsInFlight(config.limits)  # of services that need no key
    watch = watch_handler(health.watch, parser(health_pb2.HealthCheckRequest.DESCRIPTOR, calls), calls, hang_up)
    checks = unary_handlers(health_methods(health, calls), hang_up) | {"Watch": watch}
    server.add_registered_method_handlers(_HEALTH.full_name, checks)
    if config.reflection or (config.reflection is None and config.keys is None):
        _add_reflection(server, calls)


def _add_reflection(server: grpc.aio.Server, calls: CallsInFlight) -> None:
    servicer: Any = reflection.aio.ReflectionServicer((SERVICE, _HEALTH.full_name, reflection.SERVICE_NAME))
    parse = parser(reflection_pb2.ServerReflectionRequest.DESCRIPTOR, calls)
    handlers = {"ServerReflectionInfo": stream_handler(servicer.ServerReflectionInfo, parse)}
    server.add_registered_method_handlers(reflection.SERVICE_NAME, handlers)
