"""Addresses: what somebody may have meant, which of them are open to the network, and their sockets."""

import socket
from contextlib import ExitStack

import pytest

from rerank.access.addresses import bound_sockets, check_address, check_loopback
from rerank.client.client import RerankClient
from rerank.errors import ConfigError
from rerank.util.addresses import reachable_address


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
def test_host_or_port_alone_is_completed_in_the_message(given, meant):
    with pytest.raises(ConfigError, match=f"is not HOST:PORT, such as {meant}$"):
        check_address(given, "--listen", binds=False)
    with pytest.raises(ConfigError, match=f"is not HOST:PORT; use {meant}, for example$"):
        RerankClient(given)


def test_socket_of_unix_is_not_listened_at():
    with pytest.raises(ConfigError, match=r"sockets of Unix are not supported; use 127\.0\.0\.1:50051"):
        check_address("unix:/tmp/x.sock", "--listen", binds=False)


def test_port_above_the_last_is_refused_and_not_taken_modulo_65536():
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:65537: the port is above 65535"):
        check_address("127.0.0.1:65537", "--listen", binds=False)


def test_name_with_one_address_beyond_the_loopback_is_open_to_the_network(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 50051)) for host in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(ConfigError, match="anyone who reaches this address could call the service"):
        check_loopback("listen", "host.example:50051")
    del found[1]
    check_loopback("listen", "host.example:50051")


def test_each_address_of_a_name_has_its_own_socket(monkeypatch):
    """A socket of IPv6 would take the port of IPv4, too, and the second one could not be bound."""
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("0.0.0.0", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with ExitStack() as opened:
        bound = [opened.enter_context(one) for one in bound_sockets("both.example:0", "--listen", socket.socket)]
        assert [one.family for one in bound] == [socket.AF_INET6, socket.AF_INET]
        assert len({one.getsockname()[1] for one in bound}) == 1
        assert bound[0].getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1


@pytest.mark.parametrize(
    ("listen", "called"),
    [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.7:1", "10.0.0.7:1"), ("host:1", "host:1")],
)
def test_address_of_all_interfaces_is_called_at_the_loopback(listen, called):
    assert reachable_address(listen) == called
