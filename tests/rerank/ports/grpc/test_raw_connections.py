"""Half-sent, silent, old and garbage HTTP/2 connections end in time and slow nobody down."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from rerank.access.credentials import PLAIN
from rerank.client.health_check import check_health
from rerank.models.encoder import Encoder
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import (
    TIMEOUT_S,
    Served,
    held_service,
    identity_service,
    numbered_candidates,
    refusal,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000 04 00 00000000")
#: The header of a HEADERS frame of 100 bytes on stream 1, and its first ten bytes.
HALF_A_FRAME = bytes.fromhex("000064 01 04 00000001") + bytes(10)
REQUEST = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2]))


def connect(served: Served) -> socket.socket:
    host, port = served.address.split(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def seconds_until_closed(connection: socket.socket) -> float:
    """Seconds until the server closes the connection of a client that reads, but answers nothing."""
    start_s = time.monotonic()
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - start_s


def latency_s(served: Served) -> float:
    """Seconds that a short request on a new connection takes."""
    start_s = time.monotonic()
    with grpc.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        assert len(RerankServiceStub(channel).Rerank(REQUEST, timeout=TIMEOUT_S).results) == 2
    return time.monotonic() - start_s


def test_half_sent_connections_end_in_time(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.ports.grpc.server.HANDSHAKE_S", 0.5)
    all_of_it = PREFACE + SETTINGS + HALF_A_FRAME
    with (
        identity_service(encoder, connections={"keepalive_s": 0.5}) as (served, _, _),
        ExitStack() as stack,
    ):
        connections = [stack.enter_context(connect(served)) for _ in range(6)]
        for connection, size in zip(connections, (0, 10, 24, 29, 33, len(all_of_it)), strict=True):
            connection.sendall(all_of_it[:size])
        assert latency_s(served) < 5
        for connection in connections:
            assert seconds_until_closed(connection) < 10


def test_other_protocols_are_closed_at_once(encoder: Encoder) -> None:
    with identity_service(encoder) as (served, _, _):
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(200), PREFACE + b"\xff" * 1000):
            with connect(served) as connection:
                connection.sendall(sent)
                assert seconds_until_closed(connection) < 5
        assert latency_s(served) < 5


def test_old_connections_are_replaced_without_a_failed_call(encoder: Encoder) -> None:
    with identity_service(encoder, connections={"max_connection_age_s": 0.3}) as (served, _, stub):
        peers = set()
        for _ in range(30):
            peers.add(local_ports(served))
            stub.Rerank(REQUEST, timeout=TIMEOUT_S)
            time.sleep(0.05)
        assert len(peers) > 2


def local_ports(served: Served) -> frozenset[int]:
    """The ports of the clients that are connected to the service."""
    own = int(served.address.split(":")[1])
    tables = [Path(f"/proc/self/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    ends = [(int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16), row[3]) for row in rows]
    return frozenset(remote for local, remote, state in ends if local == own and state == "01")


def test_oversized_metadata_is_refused(encoder: Encoder) -> None:
    with identity_service(encoder) as (_, _, stub):
        for _ in range(3):  # always, although gRPC by itself refuses some sizes at random
            stub.Rerank(REQUEST, timeout=TIMEOUT_S, metadata=[("x-note", "n" * 15_000)])
            large: Any = [("x-note", "n" * 17_000)]
            error = refusal(lambda large=large: stub.Rerank(REQUEST, timeout=TIMEOUT_S, metadata=large))
            assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_calls_of_one_connection_are_limited(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.ports.grpc.server._MAX_STREAMS", 2)
    with held_service(encoder) as held:
        calls = [held.start_call(candidates=REQUEST.candidates)]
        calls += [held.stub.Rerank.future(REQUEST, timeout=TIMEOUT_S) for _ in range(4)]
        while held.served.server.calls.number < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        assert held.served.server.calls.number == 2
        held.ranker.release.set()
        codes = {call.code() for call in calls}  # gRPC refuses some that it could let wait
        assert grpc.StatusCode.OK in codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_garbage_health_checks_are_invalid_and_log_no_traceback(
    encoder: Encoder, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with identity_service(encoder) as (served, channel, _):
        for garbage in (b"\xff", b"\x0a\x05\xff", bytes(100), b"\x0a\xff\xff\xff\xff\x0f"):
            call = channel.unary_stream(f"/grpc.health.v1.Health/{method}")
            error = refusal(lambda call=call, garbage=garbage: next(call(garbage, timeout=TIMEOUT_S)))
            assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert check_health(served.address, PLAIN, TIMEOUT_S) == "SERVING"
    assert not [record for record in caplog.records if record.exc_info]
