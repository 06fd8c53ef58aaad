"""The addresses that clients call."""

from __future__ import annotations

#: Address on which a service listens on all interfaces, which no client can call → address of the loopback.
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def complete_address(given: str, host: str = "127.0.0.1") -> str:
    """HOST:PORT for a bare port, with `host`, or for a bare host, with port 50051."""
    part = given.strip(":")
    return f"{host}:{part}" if part.isdecimal() else f"{part or host}:50051"


def reachable_address(listen: str) -> str:
    """HOST:PORT at which a client on this machine reaches a service that listens at `listen`, which is HOST:PORT."""
    host, _, port = listen.rpartition(":")
    return f"{_LOOPBACK_OF.get(host, host)}:{port}"
