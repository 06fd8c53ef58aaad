"""Half-sent, silent, old and garbage HTTP/2 connections end in time and slow nobody down."""

from __future__ import annotations

import logging
import socket
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

import grpc
import pytest

from rerank.access.credentials import PLAIN
from rerank.client.client import check_health
from rerank.models.encoder import Encoder
from rerank.names import SERVICE
from rerank.ports.grpc import server as grpc_server
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from scripts import http2_frames
from tests.serving import TIMEOUT_S, Served, held_service, identity_service, numbered_candidates, refusal, wait_for

#: The header of a HEADERS frame of 100 bytes on stream 1, and its first ten bytes.
HALF_A_FRAME = bytes.fromhex("000064 01 04 00000001") + bytes(10)
METHOD = "/rerank.v1.RerankService/Rerank"
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
    monkeypatch.setattr("rerank.ports.grpc.server.KEEPALIVE_S", 0.5)
    all_of_it = http2_frames.preface() + HALF_A_FRAME
    with identity_service(encoder) as (served, _, _), ExitStack() as stack:
        connections = [stack.enter_context(connect(served)) for _ in range(6)]
        for connection, size in zip(connections, (0, 10, 24, 29, 33, len(all_of_it)), strict=True):
            connection.sendall(all_of_it[:size])
        assert latency_s(served) < 5
        for connection in connections:
            assert seconds_until_closed(connection) < 10


def test_old_connections_are_replaced_without_a_failed_call(encoder: Encoder) -> None:
    with identity_service(encoder, limits={"max_connection_age_s": 0.3}) as (served, _, stub):
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


@pytest.mark.parametrize(("interval_s", "is_allowed"), [(0.5, True), (0.05, False)])
def test_clients_may_ping_as_often_as_is_said_and_no_more(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, interval_s: float, is_allowed: bool
) -> None:
    """In a call and without one. The interval is a tenth of the service's own, to save time."""
    monkeypatch.setattr("rerank.ports.grpc.server._PING_INTERVAL_S", grpc_server._PING_INTERVAL_S / 10)
    with identity_service(encoder) as (served, _, _), connect(served) as idle, connect(served) as in_call:
        idle.sendall(http2_frames.preface())
        in_call.sendall(http2_frames.preface() + http2_frames.call(1, f"/{SERVICE}/Rerank"))
        with nullcontext() if is_allowed else suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(6):
                time.sleep(interval_s)
                idle.sendall(http2_frames.ping())
                in_call.sendall(http2_frames.ping())
            time.sleep(0.2)
        for connection in (idle, in_call):
            assert (http2_frames.GOAWAY in http2_frames.kinds(connection.recv(65_536))) is not is_allowed


def test_calls_that_are_cancelled_at_once_end_no_call_of_others(encoder: Encoder) -> None:
    """Rapid reset (CVE-2023-44487): 12,000 calls on four connections, each cancelled with the write that makes it."""
    resets = b"".join(http2_frames.call(n, f"/{SERVICE}/Rerank") + http2_frames.cancel(n) for n in range(1, 6000, 2))
    with identity_service(encoder) as (served, _, stub), ExitStack() as stack, ThreadPoolExecutor() as attackers:
        for _ in range(4):
            connection = stack.enter_context(connect(served))
            attackers.submit(connection.sendall, http2_frames.preface() + resets)
        for _ in range(50):
            assert len(stub.Rerank(REQUEST, timeout=TIMEOUT_S).results) == 2


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


def test_calls_of_ended_connections_that_wait_are_limited(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the event loop is busy, 40 connections make a call each and end; of the calls few are kept."""
    monkeypatch.setattr("rerank.ports.grpc.server._MAX_PENDING", 5)
    seen = []
    monkeypatch.setattr("rerank.ports.grpc.handlers.request_id_of", lambda _: seen.append("call") or "id")
    busy, has_ended = threading.Event(), threading.Event()

    def keep_busy() -> None:
        busy.set()
        has_ended.wait(TIMEOUT_S)

    with identity_service(encoder) as (served, _, stub):
        served.loop.call_soon_threadsafe(keep_busy)
        assert busy.wait(TIMEOUT_S)
        for _ in range(40):
            with connect(served) as connection:
                connection.sendall(http2_frames.preface() + http2_frames.call(1, METHOD))
                assert connection.recv(1)  # it was accepted, and its call is read next
                time.sleep(0.01)
        has_ended.set()
        assert len(stub.Rerank(REQUEST, timeout=TIMEOUT_S).results) == 2
    assert 1 < len(seen) < 20


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


def test_connections_that_do_not_read_their_answers_give_way(
    encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of them have all the calls that may be in flight, and end for others at once."""
    content = REQUEST.SerializeToString()
    calls = [http2_frames.call(stream, METHOD) + http2_frames.message(stream, content) for stream in (1, 3)]
    with identity_service(encoder, limits={"max_calls": 4}) as (served, _, stub), ExitStack() as stack:
        connections = [stack.enter_context(connect(served)) for _ in range(2)]
        for connection in connections:
            connection.sendall(http2_frames.preface(window=0) + b"".join(calls))
        served.wait_for_calls(4)
        wait_for(lambda: all(call.unread for call in served.server.calls._calls.values()))
        assert len(stub.Rerank(REQUEST, timeout=TIMEOUT_S).results) == 2
        with ThreadPoolExecutor(2) as pool:  # both have as much, and either may go
            ends = [pool.submit(seconds_until_closed, connection) for connection in connections]
            try:
                assert wait(ends, 10, FIRST_COMPLETED).done, "the server closed neither"
            finally:
                for connection in connections:  # the other one would be closed later
                    with suppress(OSError):  # the server has closed it
                        connection.shutdown(socket.SHUT_RDWR)
    assert "Traceback" not in caplog.text
