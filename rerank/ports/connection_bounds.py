"""Bounds on the open connections of a port and of one address, below the number of files that the process may open."""

from __future__ import annotations

import ipaddress
import logging
import resource
from dataclasses import dataclass

from rerank.config import ServiceConfig

log = logging.getLogger(__name__)

#: Files that are not connections of a port: libraries, models, the index, inference servers, metrics.
_OTHER_FILES = 256
#: Connections of a port, and the part of them that one address may have. A load balancer is one address.
_MAX_CONNECTIONS, _MIN_CONNECTIONS, _PART_OF_ONE_ADDRESS = 8000, 16, 0.5
#: Seconds that a new connection has for TLS and for the first frames of HTTP/2.
HANDSHAKE_S = 10.0
#: The part of an IPv6 address that its provider assigns; the rest is the client's to choose.
_IPV6_PREFIX = 64


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The most connections at the same time.

    Attributes:
        per_port: of a port.
        per_address: of one address, or of a network of 64 bits for IPv6, at a port.
    """

    per_port: int
    per_address: int


def raise_open_files_limit() -> None:
    """Raises the soft limit of open files to the hard one, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS has a lower limit than "unlimited"
            log.warning("the limit of %d open files stays, as it cannot be raised to %d: %s", soft, hard, error)


def connection_bounds(config: ServiceConfig) -> ConnectionBounds:
    """8,000 connections of a port and half of them of one address, or fewer if the process may open fewer files."""
    ports = 1 + sum(map(bool, (config.http, config.telemetry.metrics)))
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    per_port = _MAX_CONNECTIONS
    if open_files != resource.RLIM_INFINITY:
        per_port = min(per_port, max(_MIN_CONNECTIONS, (open_files - _OTHER_FILES) // ports))
    return ConnectionBounds(per_port, int(per_port * _PART_OF_ONE_ADDRESS))


def source_of(host: str) -> str:
    """The part of an address that identifies a client: all of IPv4, or the first 64 bits of IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def address_reason(source: str, bounds: ConnectionBounds) -> str:
    """Says in the log why connections of one address are refused."""
    return f"{source} has {bounds.per_address}, the most of one address"


def port_reason(bounds: ConnectionBounds) -> str:
    """Says in the log why connections of any address are refused."""
    return f"{bounds.per_port} are open, the most of a port"
