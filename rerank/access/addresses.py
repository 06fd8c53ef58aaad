"""Checks listen addresses: that they can be bound, and that none is open to the network without keys or mTLS."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from rerank.errors import ConfigError
from rerank.util.addresses import complete_address

S = TypeVar("S", bound=socket.socket)

_MAX_PORT = 65_535
#: Errors of binding an address whose family (IPv4 or IPv6) this machine does not have.
_NO_SUCH_FAMILY = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def bound_sockets(listen: str, option: str, new: Callable[[int, int, int], S]) -> list[S]:
    """Binds sockets at all addresses of a host, as gRPC does: clients of `localhost` call 127.0.0.1 or ::1.

    Args:
        listen: HOST:PORT; port 0 chooses a free one, the same for all addresses.
        option: the command-line option that sets `listen`, for errors.
        new: (family, kind, protocol) → a socket.

    Raises: ConfigError if the address is unknown, or cannot be bound.
    """
    bound: list[S] = []
    resolved = list(dict.fromkeys(_resolved(listen, option)))  # /etc/hosts may name an address twice
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
            if bound and getattr(error, "errno", 0) in _NO_SUCH_FAMILY:  # the name also has an address of this family
                continue
            for other in bound:
                other.close()
            raise _cannot_listen(listen, option, error) from error
    return bound


def check_address(listen: str, option: str, binds: bool) -> None:
    """Checks an address; with `binds`, also that this process can listen there.

    Raises: ConfigError, see `bound_sockets`.
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
        raise ConfigError(f"cannot listen on {listen!r}: it is not HOST:PORT, such as {complete_address(listen)}")
    try:
        if int(port) > _MAX_PORT:  # getaddrinfo takes larger numbers modulo 65536
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
