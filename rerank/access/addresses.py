"""Addresses that nothing guards are those of this machine, unless the operator allows more."""

from __future__ import annotations

import ipaddress
import socket

from rerank.errors import ConfigError


def check_loopback(name: str, address: str, danger: str, guard: str = "") -> None:
    """Refuses an address that other machines may reach.

    Args:
        name: the option or setting of the address.
        address: HOST:PORT.
        danger: what everyone could do who reaches the address.
        guard: what would guard it, in words that go before the other ways out.

    Raises:
        ConfigError: the address is not of this machine's loopback, or cannot be resolved.
    """
    if not _is_loopback(address):
        raise ConfigError(
            f"{name} {address}: anyone who reaches this address could {danger}; {guard}listen on 127.0.0.1, or accept "
            "that with --insecure"
        )


def _is_loopback(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {address}: {error}; choose another HOST:PORT") from error
    return all(ipaddress.ip_address(str(each[4][0])).is_loopback for each in found)
