"""The services of the gRPC port: RerankService, health checks and reflection, as handlers of its methods."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from rerank.config import ServiceConfig
from rerank.ports.grpc.handlers import stream_handler, unary_handlers, watch_handler
from rerank.ports.grpc.health import SERVICE, HealthServicer
from rerank.ports.grpc.request_stream import STREAM, request_stream_handler
from rerank.service.calls import CallsInFlight, Method, parser, protobuf_methods

log = logging.getLogger(__name__)

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]


def health_methods(health: HealthServicer, calls: CallsInFlight) -> dict[str, Method]:
    """The health check; its calls are logged at level DEBUG, because they come often."""
    return protobuf_methods(_HEALTH, {"Check": health.check}, calls, partial(log.debug, "%s"))


def add_services(
    server: grpc.aio.Server, methods: dict[str, Method], health: HealthServicer, config: ServiceConfig
) -> None:
    """Registers RerankService with these methods, the health checks, and reflection if the settings want it."""
    calls = CallsInFlight(config.limits)  # of services that need no key
    stream = {STREAM: request_stream_handler(methods["Rerank"])}
    server.add_registered_method_handlers(SERVICE, unary_handlers(methods) | stream)
    watch = watch_handler(health.watch, parser(health_pb2.HealthCheckRequest.DESCRIPTOR, calls), calls)
    checks = unary_handlers(health_methods(health, calls)) | {"Watch": watch}
    server.add_registered_method_handlers(_HEALTH.full_name, checks)
    if config.reflection or (config.reflection is None and config.keys is None):
        _add_reflection(server, calls)


def _add_reflection(server: grpc.aio.Server, calls: CallsInFlight) -> None:
    servicer: Any = reflection.aio.ReflectionServicer((SERVICE, _HEALTH.full_name, reflection.SERVICE_NAME))
    parse = parser(reflection_pb2.ServerReflectionRequest.DESCRIPTOR, calls)
    handlers = {"ServerReflectionInfo": stream_handler(servicer.ServerReflectionInfo, parse)}
    server.add_registered_method_handlers(reflection.SERVICE_NAME, handlers)
