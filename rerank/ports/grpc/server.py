"""The gRPC server: options of its connections, its address and its services."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION

from rerank.access.tls import server_credentials
from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.names import SERVICE
from rerank.ports.connections import HANDSHAKE_S, max_connections
from rerank.ports.grpc.handlers import RerankMethods, health_methods, reflection_handler, unary_handlers, watch_handler
from rerank.ports.health import Health
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import OnEnd
from rerank.service.limits import SHORT_SLOTS, CallsInFlight
from rerank.telemetry.logs import RateLimitedLog

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
#: The largest port of TCP.
_MAX_PORT = 65_535
#: Bitset of grpc_compression_algorithm with no compression alone. gRPC then refuses compressed messages, with
#: UNIMPLEMENTED, before it receives them. Otherwise 16 kB could become 16 MB, and a slow client cost as much as a fast
#: one.
_NO_COMPRESSION = 1
#: Largest number of calls at the same time on one connection; further calls wait at the client, or fail with
#: UNAVAILABLE. Cancelled calls count until this process has looked at them, some 5,000 a second on one core. So this
#: also limits how long other callers wait for a connection that cancels its calls.
_MAX_STREAMS = 64
#: Largest number of calls, of all connections, that wait until this process looks at them; gRPC ends further calls with
#: CANCELLED. Calls of ended connections count as well, so without a limit a flood of connections takes all memory.
_MAX_PENDING = 4096
#: Shortest time between two pings of a client, so that clients may ping every 5 s. By default, gRPC ends a connection
#: whose client pings more often than every 5 minutes.
_PING_INTERVAL_S = 4.5
#: Seconds without data after which the server pings a client. If no answer comes for as long, the connection ends.
KEEPALIVE_S = 30.0
#: Largest number of bytes of the metadata (headers) of a call; calls with more are refused.
_MAX_METADATA_BYTES = 16_384


class _LostAnswers(logging.Filter):
    """Counts answers to connections that have ended, instead of gRPC's traceback for each."""

    def __init__(self) -> None:
        super().__init__()
        self._lost = RateLimitedLog("gRPC port: {} answers were not sent", logging.INFO)

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        if kind is None or not issubclass(kind, grpc.aio.InternalError):
            return True
        self._lost.add(1, "their connections had ended")
        return False


_LOST_ANSWERS = _LostAnswers()


def server_options(config: ServiceConfig) -> list[tuple[str, int]]:
    """Returns gRPC's channel arguments for a server with this configuration."""
    options = [
        ("grpc.max_receive_message_length", config.limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ("grpc.so_reuseport", 0),  # so that a second server on the same port fails instead of sharing it
        ("grpc.keepalive_time_ms", _ms(KEEPALIVE_S)),  # ends connections of clients that vanished
        ("grpc.http2.ping_timeout_ms", _ms(KEEPALIVE_S)),
        ("grpc.keepalive_permit_without_calls", 1),  # also when they vanished in the middle of a frame
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(_PING_INTERVAL_S)),
        ("grpc.http2.bdp_probe", 0),  # otherwise calls that wait for their slot send megabytes
        ("grpc.server_handshake_timeout_ms", _ms(HANDSHAKE_S)),
        ("grpc.max_allowed_incoming_connections", max_connections(config)),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
        ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),  # by default gRPC refuses some at random
    ]
    if config.limits.max_connection_age_s is not None:
        options.append(("grpc.max_connection_age_ms", _ms(config.limits.max_connection_age_s)))
    return options


def bind(server: grpc.aio.Server, config: ServiceConfig) -> int:
    """Binds the address `listen` and returns its port.

    Raises:
        ConfigError: the address cannot be bound, or a file of the TLS settings cannot be used.
    """
    credentials = None if config.tls is None else server_credentials(config.tls)
    listen = config.listen
    try:
        if not 0 <= int(listen.rpartition(":")[2]) <= _MAX_PORT:  # gRPC takes larger ones modulo 65536
            raise ValueError(f"the port is not between 0 and {_MAX_PORT}")
        if credentials is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, credentials)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"cannot listen on {listen}: {error}; choose another --listen HOST:PORT") from error


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def add_services(
    server: grpc.aio.Server,
    reranker: AsyncReranker,
    calls: CallsInFlight,
    on_end: OnEnd,
    health: Health,
    hang_up: Callable[[str], None],
) -> None:
    """Registers RerankService, the health checks, and reflection unless there are keys.

    Args:
        server: has a port, and was not started.
        reranker: answers the requests.
        calls: limits of calls in flight, and the keys.
        on_end: called when a request has ended.
        health: answers the health checks, which need no key.
        hang_up: ends the connection of a client.
    """
    config = reranker.config
    logging.getLogger("grpc._cython.cygrpc").addFilter(_LOST_ANSWERS)
    methods = RerankMethods(reranker, calls, on_end)
    server.add_registered_method_handlers(SERVICE, unary_handlers(methods.by_name, calls, hang_up))
    # Few slots, because gRPC receives a message before its size is known, and no keys.
    checks = CallsInFlight(config.limits, slots=SHORT_SLOTS)
    handlers = unary_handlers(health_methods(health, checks), checks, hang_up) | {
        "Watch": watch_handler(health, checks, hang_up)
    }
    server.add_registered_method_handlers(_HEALTH.full_name, handlers)
    if config.keys is None:
        described = (SERVICE, _HEALTH.full_name, REFLECTION)
        handler = reflection_handler(described, checks, hang_up)
        server.add_registered_method_handlers(REFLECTION, {"ServerReflectionInfo": handler})
