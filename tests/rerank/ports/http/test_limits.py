"""Limits on HTTP requests: sizes, types, deadlines and calls in flight, which HTTP and gRPC share."""

import json
import logging
import socket
import time
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from tests.http_client import JSON_TYPE, texts
from tests.serving import HTTP, TIMEOUT_S, held_service, http_service

BODY = {"query": "q", "texts": texts(1, 2)}
SENT = json.dumps(BODY).encode()


def raw_request(body: bytes, *headers: str) -> bytes:
    lines = ["POST /rerank HTTP/1.1", "host: localhost", "content-type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize("chunked", [False, True])
def test_body_over_the_limit_is_refused(chunked):
    with http_service(limits={"max_message_bytes": 1000}) as served:
        document = json.dumps(BODY | {"query": "q" * 1000}).encode()
        body: Any = iter([document[:600], document[600:]]) if chunked else document
        reply = served.http.send("POST", "/rerank", body, JSON_TYPE)
        assert (reply.status, reply.json["error_type"]) == (413, "Validation")
        assert "more than the limit of 1000" in reply.json["error"]
        assert served.http.post("/rerank", BODY).status == 200


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "", "inf", "١", "0" * 5000])
def test_invalid_deadline_is_refused_by_name(http, value):
    reply = http.post("/rerank", BODY, x_request_timeout_ms=value.encode().decode("latin-1"))
    assert reply.status == 400
    assert reply.json["error"].startswith("X-Request-Timeout-Ms: ")
    assert reply.json["error"].endswith(" is not a number of milliseconds from 1")


@pytest.mark.parametrize("value", ["2147483649", "9" * 23, "9" * 5000])
def test_deadline_that_is_far_away_is_none(http, value):
    assert http.post("/rerank", BODY, x_request_timeout_ms=value).status == 200


def test_client_that_hangs_up_cancels_its_request(caplog):
    caplog.set_level(logging.INFO, "rerank.calls")
    with held_service(http=HTTP) as held:
        with socket.create_connection(held.http.host_and_port) as connection:
            connection.sendall(raw_request(SENT, f"content-length: {len(SENT)}"))
            assert held.ranker.entered.wait(TIMEOUT_S)
        held.wait_until_idle()
        assert not held.ranker.release.is_set()
        assert any("POST /rerank CANCELLED" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (raw_request(b"{", "content-length: 100"), b"HTTP/1.1 429 "),
        (b"", b""),
        (b"POST /rerank HTTP/1.1\r\nhost: localhost\r\nx-slow: ", b""),
    ],
    ids=["body", "nothing", "headers"],
)
def test_request_that_never_arrives_is_refused_or_its_connection_ended_in_time(sent, answer):
    with (
        http_service(limits={"max_transfer_s": 0.3}) as served,
        socket.create_connection(served.http.host_and_port, TIMEOUT_S) as connection,
    ):
        connection.sendall(sent)
        with suppress(*(() if answer else (ConnectionResetError,))):  # if what was sent was not read
            received = connection.recv(1000)
            assert received.startswith(answer) if answer else received == b""
        served.wait_until_idle()


def test_bodies_that_never_arrive_hold_up_no_small_request(http):
    with ExitStack() as stack:
        for _ in range(400):
            half = stack.enter_context(socket.create_connection(http.host_and_port, TIMEOUT_S))
            half.sendall(raw_request(b"{", "content-length: 100"))
        time.sleep(0.5)  # until they are waited for
        start_s = time.perf_counter()
        assert http.post("/rerank", BODY).status == 200
        assert time.perf_counter() - start_s < 2  # 16 at a time for .15 s each would take 3.75 s


def test_request_behind_another_one_is_not_aborted_while_it_is_computed():
    """Both requests are sent at once; the service takes longer for the second than a request may take to arrive."""
    with (
        held_service(free_batches=1, http=HTTP, limits={"max_transfer_s": 0.3}) as held,
        socket.create_connection(held.http.host_and_port, TIMEOUT_S) as connection,
    ):
        connection.sendall(raw_request(SENT, f"content-length: {len(SENT)}") * 2)
        assert held.ranker.entered.wait(TIMEOUT_S)
        time.sleep(0.6)
        held.ranker.release.set()
        received = b""
        while received.count(b"HTTP/1.1 200") < 2:
            received += connection.recv(65_536)


@pytest.mark.parametrize("chunk", [b"1\r\n \r\n", b"f\r\n" + b" " * 15 + b"\r\n"])
def test_body_in_tiny_chunks_is_refused(chunk):
    with http_service() as served:
        answer = served.http.exchange(raw_request(chunk * 5000, "transfer-encoding: chunked"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"in chunks of 256 bytes or more" in answer
        served.wait_until_idle()
