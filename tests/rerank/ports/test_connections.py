"""Thousands of silent connections: each port has its bound, and neither files nor the log run full."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from rerank.config import ServiceConfig
from rerank.ports.connections import max_connections
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import OWN_CONNECTION, REQUEST, TIMEOUT_S, held_service, http_service

PREFACE_AND_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")


@contextmanager
def connections(number: int, port: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that send this much and then nothing."""
    with ExitStack() as stack:
        opened = []
        for _ in range(number):
            try:
                opened.append(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
                stack.enter_context(opened[-1])
                opened[-1].sendall(sent)
            except OSError:  # refused
                pass
        yield opened


def number_open(opened: list[socket.socket]) -> int:
    """The number of connections that the service has not closed."""
    open_ = 0
    for connection in opened:
        connection.setblocking(False)
        try:
            open_ += bool(connection.recv(65_536))
        except BlockingIOError:
            open_ += 1
        except OSError:
            pass
    return open_


def test_full_grpc_port_ends_the_connections_that_are_silent_for_longest(monkeypatch):
    monkeypatch.setattr("rerank.ports.connections._MAX_CONNECTIONS", 10)
    with held_service() as held, grpc.insecure_channel(held.address, options=OWN_CONNECTION) as later:
        call = held.start_call(candidates=REQUEST.candidates)  # the oldest, and silent as such
        with connections(9, held.port, PREFACE_AND_SETTINGS) as opened:
            models = RerankServiceStub(later).ListModels(pb.ListModelsRequest(), timeout=20, wait_for_ready=True)
            assert len(models.models) == 1
            assert number_open(opened) >= 5
        held.ranker.release.set()
        assert len(call.result(TIMEOUT_S).results) == 2


def test_full_http_port_answers_beside_silent_connections(monkeypatch):
    """The oldest of them end for a new connection, also of the same address."""
    monkeypatch.setattr("rerank.ports.connections._MAX_CONNECTIONS", 10)
    with http_service() as served, connections(50, served.http.host_and_port[1]) as opened:
        for _ in range(5):
            assert served.http.get("/health").status == 200
        assert number_open(opened) < 10


@pytest.mark.parametrize(
    ("soft", "http", "expected"),
    [(20_000, "127.0.0.1:0", 8000), (1024, "127.0.0.1:0", 384), (1024, None, 768), (100, None, 16)],
)
def test_bounds_are_below_the_number_of_open_files(monkeypatch, soft, http, expected):
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, soft))
    assert max_connections(ServiceConfig.model_validate({"http": http})) == expected
