"""Half-sent, silent, old and garbage HTTP/2 connections end in time and slow nobody down."""

import logging
import socket
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext, suppress

import grpc
import psutil
import pytest

from rerank.ports.grpc import server as grpc_server
from scripts import http2_frames as frames
from tests.serving import REQUEST, RERANK, TIMEOUT_S, held_service, refusal, running_service, wait_for

#: The header of a HEADERS frame of 100 bytes on stream 1, and its first ten bytes.
HALF_A_FRAME = bytes.fromhex("000064 01 04 00000001") + bytes(10)


def seconds_until_closed(connection: socket.socket) -> float:
    """Seconds until the server closes the connection of a client that reads, but answers nothing."""
    start_s = time.monotonic()
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - start_s


def test_half_sent_connections_end_in_time(monkeypatch):
    monkeypatch.setattr("rerank.ports.grpc.server.HANDSHAKE_S", 0.5)
    monkeypatch.setattr("rerank.ports.grpc.server.KEEPALIVE_S", 0.5)
    all_of_it = frames.preface() + HALF_A_FRAME
    with running_service() as served, ExitStack() as stack:
        connections = [stack.enter_context(served.connect()) for _ in range(6)]
        for connection, size in zip(connections, (0, 10, 24, 29, 33, len(all_of_it)), strict=True):
            connection.sendall(all_of_it[:size])
        start_s = time.monotonic()
        assert served.health == "SERVING"
        assert served.answers()
        assert time.monotonic() - start_s < 5
        for connection in connections:
            assert seconds_until_closed(connection) < 10


def test_old_connections_are_replaced_without_a_failed_call():
    with running_service(limits={"max_connection_age_s": 0.3}) as served:
        peers = set()
        for _ in range(30):
            connections = psutil.Process().net_connections("tcp")
            peers |= {one.raddr.port for one in connections if one.laddr.port == served.port and one.raddr}
            assert served.answers()
            time.sleep(0.05)
        assert len(peers) > 2


@pytest.mark.parametrize(("interval_s", "is_allowed"), [(0.25, True), (0.02, False)])
def test_clients_may_ping_as_often_as_is_said_and_no_more(monkeypatch, interval_s, is_allowed):
    """In a call and without one. The interval is a twentieth of the service's own, to save time."""
    monkeypatch.setattr("rerank.ports.grpc.server._PING_INTERVAL_S", grpc_server._PING_INTERVAL_S / 20)
    with running_service() as served, served.connect() as idle, served.connect() as in_call:
        idle.sendall(frames.preface())
        in_call.sendall(frames.preface() + frames.call(1, RERANK))
        with nullcontext() if is_allowed else suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(6):
                time.sleep(interval_s)
                idle.sendall(frames.ping())
                in_call.sendall(frames.ping())
            time.sleep(0.2)
        for connection in (idle, in_call):
            assert (frames.GOAWAY in frames.kinds(connection.recv(65_536))) is not is_allowed


def test_calls_that_are_cancelled_at_once_end_no_call_of_others():
    """Rapid reset (CVE-2023-44487): 12,000 calls on four connections, each cancelled with the write that makes it."""
    resets = b"".join(frames.call(n, RERANK) + frames.cancel(n) for n in range(1, 6000, 2))
    with running_service() as served, ExitStack() as stack, ThreadPoolExecutor() as attackers:
        for _ in range(4):
            connection = stack.enter_context(served.connect())
            attackers.submit(connection.sendall, frames.preface() + resets)
        for _ in range(50):
            assert served.answers()


def test_calls_of_one_connection_are_limited(monkeypatch):
    monkeypatch.setattr("rerank.ports.grpc.server._MAX_STREAMS", 2)
    with held_service() as held:
        calls = [held.start_call(candidates=REQUEST.candidates)]
        calls += [held.stub.Rerank.future(REQUEST, timeout=TIMEOUT_S) for _ in range(4)]
        held.wait_for_calls(2)
        time.sleep(0.2)
        assert held.server.calls.number == 2
        held.ranker.release.set()
        codes = {call.code() for call in calls}  # gRPC refuses some that it could let wait
        assert grpc.StatusCode.OK in codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}


def test_calls_of_ended_connections_that_wait_are_limited(monkeypatch):
    """While the event loop is busy, 40 connections make a call each and end; of the calls few are kept."""
    monkeypatch.setattr("rerank.ports.grpc.server._MAX_PENDING", 5)
    seen = []
    monkeypatch.setattr("rerank.ports.grpc.handlers.request_id_of", lambda _: seen.append("call") or "id")
    busy, has_ended = threading.Event(), threading.Event()

    def keep_busy() -> None:
        busy.set()
        has_ended.wait(TIMEOUT_S)

    with running_service() as served:
        served.loop.call_soon_threadsafe(keep_busy)
        assert busy.wait(TIMEOUT_S)
        for _ in range(40):
            with served.connect() as connection:
                connection.sendall(frames.preface() + frames.call(1, RERANK))
                assert connection.recv(1)  # it was accepted, and its call is read next
                time.sleep(0.01)
        has_ended.set()
        served.wait_until_idle()
        assert served.answers()
    assert 1 < len(seen) < 20


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_garbage_health_checks_are_invalid_and_log_no_traceback(method, caplog):
    caplog.set_level(logging.WARNING)
    with running_service() as served:
        for garbage in (b"\xff", b"\x0a\x05\xff", bytes(100), b"\x0a\xff\xff\xff\xff\x0f"):
            call = served.channel.unary_stream(f"/grpc.health.v1.Health/{method}")
            error = refusal(lambda call=call, garbage=garbage: next(call(garbage, timeout=TIMEOUT_S)))
            assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert served.health == "SERVING"
    assert not [record for record in caplog.records if record.exc_info]


def test_connections_that_do_not_read_their_answers_give_way(caplog):
    """Two of them have all the calls that may be in flight, and end for others at once."""
    content = REQUEST.SerializeToString()
    calls = [frames.call(stream, RERANK) + frames.message(stream, content) for stream in (1, 3)]
    with running_service(limits={"max_calls": 4}) as served, ExitStack() as stack:
        connections = [stack.enter_context(served.connect()) for _ in range(2)]
        for connection in connections:
            connection.sendall(frames.preface(window=0) + b"".join(calls))
        served.wait_for_calls(4)
        wait_for(lambda: all(call.unread for call in served.server.calls._calls.values()))
        assert served.answers()
        with ThreadPoolExecutor(2) as pool:  # both have as much, and either may go
            ends = [pool.submit(seconds_until_closed, connection) for connection in connections]
            try:
                assert wait(ends, 10, FIRST_COMPLETED).done, "the server closed neither"
            finally:
                for connection in connections:  # the other one would be closed later
                    with suppress(OSError):  # the server has closed it
                        connection.shutdown(socket.SHUT_RDWR)
    assert "Traceback" not in caplog.text
