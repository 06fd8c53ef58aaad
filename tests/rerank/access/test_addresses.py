"""Addresses: what somebody may have meant who gave a host or a port alone."""

from __future__ import annotations

import pytest

from rerank.access.addresses import check_address
from rerank.client.client import RerankClient
from rerank.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (":15098", "127.0.0.1:15098"),
        ("15098", "127.0.0.1:15098"),
        ("localhost", "localhost:50051"),
        ("localhost:", "localhost:50051"),
        (":", "127.0.0.1:50051"),
        ("", "127.0.0.1:50051"),
    ],
)
def test_host_or_port_alone_is_completed_in_the_message(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"is not HOST:PORT, such as {meant}$"):
        check_address(given, "--listen", binds=False)
    with pytest.raises(ConfigError, match=f"is not HOST:PORT; use {meant}, for example$"):
        RerankClient(given)


def test_socket_of_unix_is_not_listened_at() -> None:
    with pytest.raises(ConfigError, match=r"sockets of Unix are not supported; use 127\.0\.0\.1:50051"):
        check_address("unix:/tmp/x.sock", "--listen", binds=False)
