"""Thousands of silent connections: each port has its bound, and neither files nor the log run full."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from rerank.config import ServiceConfig
from rerank.models.encoder import Encoder
from rerank.ports import connections as connections_module
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.http_client import http_service
from tests.serving import TIMEOUT_S, numbered_candidates, reranker_of, serving

PREFACE_AND_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")
REQUEST = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2]))


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


def test_full_grpc_port_ends_the_connections_that_are_silent_for_longest(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_MAX_CONNECTIONS", 10)
    ranker = NumberRanker(free_batches=0)
    with (
        serving(reranker_of(encoder, {"held": ranker})) as served,
        grpc.insecure_channel(served.address) as busy,
        grpc.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1)]) as later,
    ):
        call = RerankServiceStub(busy).Rerank.future(REQUEST, timeout=TIMEOUT_S)  # the oldest, and silent as such
        assert ranker.entered.wait(TIMEOUT_S)
        port = int(served.address.rpartition(":")[2])
        with connections(9, port, PREFACE_AND_SETTINGS) as opened:
            models = RerankServiceStub(later).ListModels(pb.ListModelsRequest(), timeout=20, wait_for_ready=True)
            assert len(models.models) == 1
            assert number_open(opened) >= 5
        ranker.release.set()
        assert len(call.result(TIMEOUT_S).results) == 2


def test_full_http_port_answers_beside_silent_connections(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of them end for a new connection, also of the same address."""
    monkeypatch.setattr(connections_module, "_MAX_CONNECTIONS", 10)
    with http_service(encoder) as (_, client), connections(50, client.host_and_port[1]) as opened:
        for _ in range(5):
            assert client.get("/health").status == 200
        assert number_open(opened) < 10


@pytest.mark.parametrize(
    ("soft", "http", "expected"),
    [(20_000, "127.0.0.1:0", 8000), (1024, "127.0.0.1:0", 384), (1024, None, 768), (100, None, 16)],
)
def test_bounds_are_below_the_number_of_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, http: str | None, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    config = ServiceConfig.model_validate({"http": http})
    assert connections_module.max_connections(config) == expected
