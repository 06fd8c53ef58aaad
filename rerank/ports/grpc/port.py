"""The gRPC port: options of its connections, and its address."""

from __future__ import annotations

import grpc

from rerank.access.tls import server_credentials
from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.ports.connection_bounds import connection_bounds

_MAX_PORT = 65_535
#: gRPC refuses compressed messages before it receives them, with UNIMPLEMENTED. Otherwise 16 kB could become 16 MB, and
#: a slow client cost what only a fast one can. Of the bits of grpc_compression_algorithm, 1 is no compression.
_NO_COMPRESSION = 1


def server_options(config: ServiceConfig) -> list[tuple[str, int]]:
    """gRPC's channel arguments for a server with this configuration."""
    connections = config.connections
    options = [
        ("grpc.max_receive_message_length", config.limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ("grpc.so_reuseport", 0),  # so that a second server on the same port fails instead of sharing it
        ("grpc.keepalive_time_ms", _ms(connections.keepalive_s)),  # clients that vanished leave no connection behind
        ("grpc.http2.ping_timeout_ms", _ms(connections.keepalive_s)),
        ("grpc.keepalive_permit_without_calls", 1),  # also when they vanished in the middle of a frame
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", 0),  # otherwise calls whose turn to send has not come send megabytes
        ("grpc.server_handshake_timeout_ms", _ms(connections.handshake_s)),
        ("grpc.max_allowed_incoming_connections", connection_bounds(config).per_port),
        ("grpc.max_concurrent_streams", connections.max_streams),
        ("grpc.max_metadata_size", connections.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", connections.max_metadata_bytes),  # by default gRPC refuses some at random
    ]
    if connections.max_connection_age_s is not None:
        options.append(("grpc.max_connection_age_ms", _ms(connections.max_connection_age_s)))
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
