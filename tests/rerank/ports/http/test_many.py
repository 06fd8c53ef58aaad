"""POST /rerank/many: a request per line, an answer per line, failures of single lines, and the bounds of the body."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.models.encoder import Encoder
from rerank.service.streams import RequestStream
from tests.fakes import HeldRanker, NumberRanker
from tests.http_client import HttpClient, Reply, http_service, texts
from tests.serving import TIMEOUT_S, wait_for

NDJSON = {"content-type": "application/x-ndjson"}


def asked(*numbers: float, **fields: Any) -> dict[str, Any]:
    candidates = [{"doc_id": f"d{i}", "text": text} for i, text in enumerate(texts(*numbers))]
    return {"query": "q", "candidates": candidates} | fields


def body_of(*requests: object) -> bytes:
    return "\n".join(each if isinstance(each, str) else json.dumps(each) for each in requests).encode()


def post(client: HttpClient, *requests: object, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.send("POST", "/rerank/many", body_of(*requests), NDJSON | named)


@contextmanager
def sent(client: HttpClient, *requests: object) -> Iterator[socket.socket]:
    """A connection on which these requests were sent and whose answer was not read."""
    body = body_of(*requests)
    head = f"POST /rerank/many HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    with socket.create_connection(client.host_and_port, TIMEOUT_S) as connection:
        connection.sendall(f"{head}content-type: application/x-ndjson\r\n\r\n".encode() + body)
        yield connection


def whole_answer(connection: socket.socket) -> bytes:
    received = b""
    while b"0\r\n\r\n" not in received:
        received += connection.recv(65_536)
    return received


def answers(reply: Reply) -> dict[int, Any]:
    assert (reply.status, reply.headers["content-type"]) == (200, "application/x-ndjson"), reply.body
    return {(line := json.loads(each)).pop("number"): line for each in reply.body.splitlines()}


def test_each_line_is_answered_as_the_single_request_is(http: HttpClient) -> None:
    requests = [asked(*range(n), model="number", top_n=2) for n in (1, 2, 3)]
    found = answers(post(http, *requests))
    for number, request in enumerate(requests):
        assert found[number]["response"]["results"] == http.post("/rerank", request).json["results"]
    assert len(found) == 3


def test_wrong_lines_fail_alone(http: HttpClient) -> None:
    wrong = ["{broken", "[]", asked(), asked(1, model="none"), {"query": "q", "documents": ["a"]}]
    found = answers(post(http, *wrong, "", asked(1, 2), " "))
    for number, each in enumerate(wrong):
        reply = http.send("POST", "/rerank", body_of(each), {"content-type": "application/json"})
        if number != 4:  # a form of others, which is taken at /rerank
            assert found[number]["error"]["message"] == reply.json["message"]
    assert "documents" in found[4]["error"]["message"]
    assert [result["doc_id"] for result in found[5]["response"]["results"]] == ["d1", "d0"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [(b"", "body: it has no requests"), (b" \n\n", "body: it has no requests"), (b"\n" * 10_001, "body: it has 10001")],
)
def test_body_without_requests_or_with_too_many_lines_is_refused(http: HttpClient, body: bytes, problem: str) -> None:
    reply = http.send("POST", "/rerank/many", body, NDJSON)
    assert (reply.status, reply.json["message"].startswith(problem)) == (400, True)


def test_other_types_and_methods_are_refused(http: HttpClient) -> None:
    refused = http.post("/rerank/many", asked(1))
    assert (refused.status, refused.json["message"]) == (
        415,
        "the content type is 'application/json'; send application/x-ndjson",
    )
    assert http.get("/rerank/many").status == 405


def test_values_of_a_line_are_counted_before_they_are_parsed(http: HttpClient) -> None:
    found = answers(post(http, '{"a": [' + "[]," * 100_000 + "[]]}", asked(1)))
    assert "values" in found[0]["error"]["message"]
    assert "response" in found[1]


def test_deadline_of_the_request_is_that_of_its_lines(encoder: Encoder) -> None:
    ranker = HeldRanker()
    with http_service(encoder, {"number": ranker}) as (_, client):
        found = answers(post(client, asked(1, 2), asked(2, 3), x_request_timeout_ms="300"))
        assert [found[number]["error"]["code"] for number in (0, 1)] == [4, 4]
        ranker.release.set()


def test_client_that_hangs_up_cancels_its_lines(encoder: Encoder) -> None:
    ranker = HeldRanker()
    with http_service(encoder, {"number": ranker}) as (served, client):
        with sent(client, asked(1, 2), asked(2, 3)):
            assert ranker.entered.wait(TIMEOUT_S)
            served.wait_for_calls(2)
        wait_for(lambda: served.server.calls.number == 0)
        ranker.release.set()


def test_drain_that_ends_first_is_said_on_a_line(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    ranker = HeldRanker()
    with http_service(encoder, {"number": ranker}) as (served, client), sent(client, asked(1, 2)) as connection:
        assert ranker.entered.wait(TIMEOUT_S)
        drained = served.start(served.server.drain(0.1))
        received = whole_answer(connection)
        ranker.release.set()
        drained.result(TIMEOUT_S)
    assert b'{"error": {"code": 14' in received
    assert not [record for record in caplog.records if record.exc_info]


def test_drain_during_the_last_answer_adds_no_line(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the last call ends some time before its stream does."""
    answer_all = RequestStream.answer_all

    async def answer_all_and_wait(self: RequestStream, read: Any) -> None:
        await answer_all(self, read)
        await asyncio.sleep(0.2)

    monkeypatch.setattr(RequestStream, "answer_all", answer_all_and_wait)
    ranker = HeldRanker()
    with (
        http_service(encoder, {"number": ranker}) as (served, client),
        sent(client, *[asked(1, 2)] * 10) as connection,
    ):
        assert ranker.entered.wait(TIMEOUT_S)
        drained = served.start(served.server.drain(TIMEOUT_S))
        wait_for(lambda: served.server.calls.is_shutting_down)
        ranker.release.set()
        received = whole_answer(connection)
        drained.result(TIMEOUT_S)
    lines = [json.loads(line) for line in received.splitlines() if line.startswith(b"{")]
    assert sorted(line["number"] for line in lines) == [*range(10)]


def test_keys_hold_for_the_lines(encoder: Encoder, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    key = add_key(keys, "one", CallerLimits(max_calls=1, models=("identity",)))
    with http_service(encoder, keys=keys) as (_, client):
        assert post(client, asked(1)).status == 401
        found = answers(post(client, *[asked(1)] * 5, asked(1, model="other"), authorization=f"Bearer {key}"))
    assert [*found[5]] == ["error"]
    assert all("response" in found[number] for number in range(5))


def test_two_bodies_of_one_key_are_answered_whole(encoder: Encoder, tmp_path: Path) -> None:
    """Beside other calls of the key, too, whose number the lines do not count against."""
    keys = tmp_path / "keys.yaml"
    key = {"authorization": f"Bearer {add_key(keys, 'one', CallerLimits(max_calls=2))}"}
    requests = [asked(*range(20), model="number")] * 40
    with http_service(encoder, {"number": NumberRanker()}, keys=keys) as (_, client), ThreadPoolExecutor(2) as threads:
        bodies = [threads.submit(post, client, *requests, **key) for _ in range(2)]
        while not all(body.done() for body in bodies):
            assert client.post("/rerank", requests[0], **key).status == 200
        found = [answers(body.result()) for body in bodies]
    assert [sorted(each) for each in found] == [[*range(40)]] * 2
    assert all(len(line["response"]["results"]) == 20 for each in found for line in each.values())
