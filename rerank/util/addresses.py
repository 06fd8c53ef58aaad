"""The addresses that clients call."""

from __future__ import annotations

#: Address of all interfaces, which no client can call → the loopback.
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def complete_address(given: str, host: str = "127.0.0.1") -> str:
    """Completes a bare host or port to HOST:PORT: with this host, or with port 50051."""
    part = given.strip(":")
    return f"{host}:{part}" if part.isdecimal() else f"{part or host}:50051"


def reachable_address(listen: str) -> str:
    """HOST:PORT for a client on this machine to reach a service that listens at an address."""
    host, _, port = listen.rpartition(":")
    return f"{_LOOPBACK_OF.get(host, host)}:{port}"
