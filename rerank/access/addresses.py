"""Checks listen addresses: they can be bound, and none is open to the network without keys or mTLS."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from rerank.errors import ConfigError

S = TypeVar("S", bound=socket.socket)

_MAX_PORT = 65_535
#: Errors of an address that this machine has a name for, but no interface.
_NO_SUCH_FAMILY = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
#: Address of all interfaces, which nobody can call → the loopback.
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def bound_sockets(listen: str, option: str, new: Callable[[int, int, int], S]) -> list[S]:
    """Sockets at all addresses of a host, as gRPC listens: clients of `localhost` call 127.0.0.1 or ::1.

    Args:
        listen: HOST:PORT; port 0 chooses a free one, the same for all addresses.
        option: sets `listen`, in errors.
        new: makes a socket of a family, kind and protocol.

    Raises: ConfigError.
    """
    bound: list[S] = []
    resolved = list(dict.fromkeys(_resolved(listen, option)))  # a file of hosts may name an address twice
    for family, kind, protocol, _, address in resolved:
        port = bound[0].getsockname()[1] if bound else address[1]
        try:
            bound.append(made := new(family, kind, protocol))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: a closed port is free at once
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, len(resolved) > 1)
            made.bind((address[0], port, *address[2:]))
        except (OSError, OverflowError) as error:
            bound.pop().close()
            if bound and getattr(error, "errno", 0) in _NO_SUCH_FAMILY:  # a name of both families, and a machine of one
                continue
            for other in bound:
                other.close()
            raise _cannot_listen(listen, option, error) from error
    return bound


def with_host_and_port(given: str, host: str = "127.0.0.1") -> str:
    """HOST:PORT as somebody may have meant it who gave one of them: with this host, or port 50051."""
    part = given.strip(":")
    return f"{host}:{part}" if part.isdecimal() else f"{part or host}:50051"


def check_address(listen: str, option: str, binds: bool) -> None:
    """Checks an address, which `option` names; with `binds`, also that this process can listen there.

    Raises: ConfigError.
    """
    if binds:
        for bound in bound_sockets(listen, option, socket.socket):
            bound.close()
    else:
        _resolved(listen, option)


def _resolved(listen: str, option: str) -> list[tuple[int, int, int, str, Any]]:
    """The addresses of a name, as socket.getaddrinfo gives them."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        if listen.startswith("unix:"):
            raise ConfigError(f"cannot listen on {listen!r}: sockets of Unix are not supported; use 127.0.0.1:50051")
        raise ConfigError(f"cannot listen on {listen!r}: it is not HOST:PORT, such as {with_host_and_port(listen)}")
    try:
        if int(port) > _MAX_PORT:  # getaddrinfo takes it modulo 65536
            raise OverflowError(f"the port is above {_MAX_PORT}")
        return list(socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM))
    except (OSError, OverflowError, ValueError) as error:
        raise _cannot_listen(listen, option, error) from error


def _cannot_listen(listen: str, option: str, reason: Exception) -> ConfigError:
    return ConfigError(f"cannot listen on {listen[:100]}: {reason}; choose another {option} HOST:PORT")


def check_loopback(name: str, address: str) -> None:
    """Raises: ConfigError if `address`, HOST:PORT of the setting `name`, is not of this machine's loopback."""
    if any(not ipaddress.ip_address(str(found[4][0])).is_loopback for found in _resolved(address, name)):
        raise ConfigError(
            f"{name} {address}: anyone who reaches this address could call the service; require keys (--keys FILE, see "
            "`rerank keys add`), listen on 127.0.0.1, or accept that with --insecure"
        )


def reachable(address: str) -> str:
    """HOST:PORT for a client on this machine to reach a service that listens at an address."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK_OF.get(host, host)}:{port}"
