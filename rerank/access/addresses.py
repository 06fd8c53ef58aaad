"""Checks of addresses: this process can listen at them, and other machines reach none that nothing guards."""

from __future__ import annotations

import ipaddress
import socket

from rerank.errors import ConfigError


def check_address(listen: str, option: str) -> None:
    """Checks that this process can listen at an address, which `option` names. Raises: ConfigError."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        example = f"127.0.0.1:{listen}" if listen.isdecimal() else f"{host or listen}:50051"
        raise ConfigError(f"cannot listen on {listen!r}: it is not HOST:PORT, such as {example}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: a closed port is free at once
            probe.bind(address)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(f"cannot listen on {listen[:100]}: {error}; choose another {option} HOST:PORT") from error


def check_loopback(name: str, address: str, danger: str, guard: str = "") -> None:
    """Refuses an address that other machines may reach.

    Args:
        name: the option or setting of the address.
        address: HOST:PORT.
        danger: what anyone who reaches the address could do.
        guard: the settings that would guard it, which the error names first.

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
