"""Limits, keys, deadlines, the drain and the log hold for a call over gRPC and over HTTP alike."""

import io
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from rerank.access.keys import CallerLimits, add_key
from rerank.engine.engine import Engine
from rerank.names import SERVICE
from rerank.telemetry.logs import JsonFormatter
from rerank.v1 import rerank_pb2 as pb
from tests.http_client import JSON_TYPE
from tests.serving import (
    HTTP,
    REQUEST,
    RERANK,
    TIMEOUT_S,
    HeldService,
    Served,
    detail,
    held_service,
    http_service,
    numbered_candidates,
    wait_for,
)

TWO = {"query": "secret", "candidates": REQUEST.candidates}


@dataclass(frozen=True)
class Answer:
    """The answer to a client: name of the gRPC status, message, seconds until a retry, id of the request, results."""

    code: str
    message: str
    retry_s: int
    request_id: str
    results: int

    @property
    def outcome(self) -> tuple[str, int]:
        return self.code, self.results


Headers = tuple[tuple[str, str], ...]
#: Sends a request of a method, with headers and a time to answer it.
Send = Callable[..., Answer]
ANSWERED = ("OK", 2)


def over_grpc(served: Served, method: str, request: Any, headers: Headers = (), timeout_s: float = TIMEOUT_S) -> Answer:
    with grpc.insecure_channel(served.address) as channel:
        rpc = channel.unary_unary(f"/{SERVICE}/{method}")
        call = rpc.future(request.SerializeToString(), timeout=timeout_s, metadata=headers)
        status = rpc_status.from_call(call)
        retry = detail(status, error_details_pb2.RetryInfo).retry_delay.seconds if status else 0
        results = len(pb.RerankResponse.FromString(call.result()).results) if call.code() is grpc.StatusCode.OK else 0
        request_id = dict(call.trailing_metadata()).get("x-request-id", "")
        return Answer(call.code().name, call.details(), retry, request_id, results)


def over_http(served: Served, method: str, request: Any, headers: Headers = (), timeout_s: float = TIMEOUT_S) -> Answer:
    codes = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND"}
    codes |= {200: "OK", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}
    if method == "ListModels":
        reply = served.http.send("GET", "/v1/models", headers=dict(headers))
    else:
        body = json_format.MessageToJson(request).encode()
        fields = JSON_TYPE | {"x-request-timeout-ms": str(round(timeout_s * 1000))}
        reply = served.http.send("POST", f"/{method.lower()}", body, fields | dict(headers))
    retry_s, request_id = int(reply.headers.get("retry-after", 0)), reply.headers.get("x-request-id", "")
    content = reply.json
    return Answer(codes[reply.status], content.get("message", ""), retry_s, request_id, len(content.get("results", ())))


@pytest.fixture(params=[over_grpc, over_http])
def send(request: pytest.FixtureRequest) -> Send:
    return request.param


def rerank(
    send: Send, served: Served, *headers: tuple[str, str], timeout_s: float = TIMEOUT_S, **fields: Any
) -> Answer:
    return send(served, "Rerank", pb.RerankRequest(**TWO | fields), headers, timeout_s)


def bearer(key: str) -> tuple[str, str]:
    return "authorization", f"Bearer {key}"


@contextmanager
def in_flight(send: Send, held: HeldService, *headers: tuple[str, str]) -> Iterator[None]:
    """A call that waits in the model; when the block ends, it is answered."""
    with ThreadPoolExecutor() as pool:
        call = pool.submit(rerank, send, held, *headers)
        assert held.ranker.entered.wait(TIMEOUT_S)
        try:
            yield
        finally:
            held.ranker.release.set()
        assert call.result(TIMEOUT_S).outcome == ANSWERED


def test_calls_over_the_limit_are_told_when_to_come_again(send):
    with held_service(http=HTTP, limits={"max_calls": 1}) as held:
        with in_flight(over_grpc, held):
            candidates = numbered_candidates(range(100))
            refused = rerank(send, held, candidates=candidates, on_failure=pb.ON_FAILURE_FIRST_STAGE)
            assert (refused.code, refused.retry_s) == ("RESOURCE_EXHAUSTED", 1)
            assert is_healthy(held)
        held.wait_until_idle()
        assert rerank(send, held).outcome == ANSWERED


def is_healthy(served: Served) -> bool:
    """True if both ports tell everyone that the service is healthy."""
    over_grpc = served.health == "SERVING"
    assert over_grpc == (served.http.get("/health").status == 200)
    return over_grpc


def test_missed_deadline_is_named(send):
    with held_service(http=HTTP) as held:
        assert rerank(send, held, timeout_s=0.3).code == "DEADLINE_EXCEEDED"


def test_drain_refuses_new_calls_and_finishes_those_in_flight(send):
    with held_service(http=HTTP) as held:
        with in_flight(send, held):
            drained = held.start(held.server.drain(TIMEOUT_S))
            wait_for(lambda: held.server.calls.is_shutting_down)
            assert rerank(send, held).code == "UNAVAILABLE"
            assert not is_healthy(held)
        drained.result(TIMEOUT_S)


def test_calls_that_outlast_the_drain_are_sent_elsewhere(send, caplog):
    with held_service(http=HTTP) as held, ThreadPoolExecutor() as pool:
        calls = [pool.submit(rerank, send, held) for _ in range(3)]
        held.wait_for_calls(3)
        held.wait(held.server.drain(0.1))
        for answer in (call.result(TIMEOUT_S) for call in calls):
            assert answer.code == "UNAVAILABLE"
            # The end of a gRPC connection comes before the message.
            assert send is over_grpc or "send the request to another replica" in answer.message
        held.ranker.release.set()  # closing waits for its batch
    assert not [record for record in caplog.records if record.exc_info or record.name.startswith("uvicorn")]


def test_calls_that_cannot_end_in_a_drain_are_told_at_once(send, monkeypatch):
    """Three calls of 12 s each, and 20 s: the latest one ends, and the others are answered."""
    monkeypatch.setattr(Engine, "remaining_s", property(lambda engine: 12.0 * engine.queued_requests))
    with held_service(http=HTTP) as held, ThreadPoolExecutor() as pool:
        calls = []
        for number in range(3):
            calls.append(pool.submit(rerank, send, held))
            held.wait_for_calls(number + 1)
        draining = held.start(held.server.drain(20.0))
        answer = calls[2].result(10)
        assert (answer.code, "send the request to another replica" in answer.message) == ("UNAVAILABLE", True)
        assert not any(call.done() for call in calls[:2])
        held.ranker.release.set()
        assert [call.result(TIMEOUT_S).outcome for call in calls[:2]] == [ANSWERED] * 2
        draining.result(TIMEOUT_S)


@contextmanager
def unread_over_grpc(served: Served, request: pb.RerankRequest) -> Iterator[Callable[[], bool]]:
    with grpc.insecure_channel(served.address) as channel:
        call = channel.stream_stream(RERANK)(iter([request.SerializeToString()]))
        yield lambda: call.code() is grpc.StatusCode.UNAVAILABLE


@contextmanager
def unread_over_http(served: Served, request: pb.RerankRequest) -> Iterator[Callable[[], bool]]:
    body = json_format.MessageToJson(request).encode()
    lines = ["POST /rerank HTTP/1.1", "host: localhost", "content-type: application/json"]
    head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode()

    def is_cut() -> bool:
        received = 0
        with suppress(ConnectionResetError):
            while part := connection.recv(2**20):
                received += len(part)
        return received < len(body)

    with socket.create_connection(served.http.host_and_port) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.sendall(head + body)
        yield is_cut


@pytest.mark.parametrize("unread", [unread_over_grpc, unread_over_http])
def test_unread_answer_ends_the_connection_and_leaves_no_call(unread):
    # Larger than the buffers of both sockets, which would otherwise take all of the answer.
    candidates = [pb.Candidate(doc_id=str(number), text="x" * 150_000) for number in range(100)]
    request = pb.RerankRequest(query="q", candidates=candidates, return_passages=True)
    limits = {"max_transfer_s": 1.0, "max_message_bytes": 2**25}
    with http_service(limits=limits) as served, unread(served, request) as is_cut:
        served.wait_for_calls(1)
        served.wait_until_idle()
        assert is_cut()
        assert rerank(over_grpc, served).outcome == rerank(over_http, served).outcome == ANSWERED


@pytest.mark.parametrize("given", ["r-17", "x" * 128])
def test_id_of_a_request_is_in_its_answer_its_error_and_the_log(send, given, caplog):
    caplog.set_level(logging.INFO, "rerank.calls")
    asked = [{"model": "identity"}, {"model": "no\nmodel"}, {"model": "identity", "query": " "}]
    with http_service() as served:
        answers = [rerank(send, served, ("x-request-id", given), **fields) for fields in asked]
    assert [answer.request_id for answer in answers] == [given] * 3
    lines = [record.getMessage() for record in caplog.records if f"id={given}" in record.getMessage()]
    assert [re.sub(r"[0-9]+ ms", "N ms", line).removeprefix("POST /").lower() for line in lines] == [
        f"rerank ok n ms id={given} model=identity candidates=2 windows=1",
        rf"rerank not_found n ms id={given} model='no\nmodel' candidates=2 windows=0",
        f"rerank invalid_argument n ms id={given} model='identity' candidates=2 windows=0",
    ]
    assert "secret" not in caplog.text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of the keys."""
    return tmp_path / "keys.yaml"


def test_calls_without_a_valid_key_are_refused_in_every_method(path, send):
    key = add_key(path, "frontend", CallerLimits())
    wrong = [(), (bearer("wrong"),), (bearer(key[:-1]),), (bearer(key + "x"),)]
    requests = {"Rerank": pb.RerankRequest(**TWO), "Search": pb.SearchRequest(query="q")}
    requests["ListModels"] = pb.ListModelsRequest()
    with http_service(keys=path, limits={"max_calls": 1}) as served:
        for headers in wrong:
            assert rerank(send, served, *headers).code == "UNAUTHENTICATED"
        for method, request in requests.items():
            assert send(served, method, request).code == "UNAUTHENTICATED"
        served.wait_until_idle()  # although they were refused, they do not count as in flight
        assert rerank(send, served, bearer(key)).outcome == ANSWERED
        assert is_healthy(served)


def test_path_of_a_model_is_not_a_name(path, send):
    key = bearer(add_key(path, "a", CallerLimits()))
    with http_service(keys=path) as served:
        for name in ("/etc/passwd", "../checkpoints/first", "org/model", "number\x00", str(path)):
            assert rerank(send, served, key, model=name).code == "NOT_FOUND"


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"max_calls": 1}, "key few has 1 calls in flight"), ({"max_queue_tokens": 100}, "its limit of 100")],
    ids=["calls", "tokens"],
)
def test_calls_and_tokens_of_one_key_are_limited_and_those_of_others_are_not(path, send, limits, message):
    few, free = bearer(add_key(path, "few", CallerLimits(**limits))), bearer(add_key(path, "free", CallerLimits()))
    with held_service(http=HTTP, keys=path) as held:
        with ThreadPoolExecutor() as pool, in_flight(send, held, few):
            fields = {"candidates": numbered_candidates(range(50)), "on_failure": pb.ON_FAILURE_FIRST_STAGE}
            refused = rerank(send, held, few, **fields)
            assert (refused.code, refused.retry_s) == ("RESOURCE_EXHAUSTED", 1)
            assert message in refused.message
            other = pool.submit(rerank, send, held, free)
            held.wait_for_calls(2)
            held.ranker.release.set()
            assert other.result(TIMEOUT_S).outcome == ANSWERED
        held.wait_until_idle()
        assert rerank(send, held, few).outcome == ANSWERED


def test_log_names_the_key_and_never_shows_it(path, send, caplog):
    caplog.set_level(logging.INFO)
    log, json_lines = logging.getLogger("rerank.calls"), io.StringIO()
    handler = logging.StreamHandler(json_lines)
    handler.setFormatter(JsonFormatter())
    key = add_key(path, "frontend", CallerLimits())
    log.addHandler(handler)
    try:
        with http_service(keys=path) as served:
            rerank(send, served, bearer(key))
            rerank(send, served, bearer("stolen"))
    finally:
        log.removeHandler(handler)
    assert caplog.text.count(" key=frontend ") == 1
    assert [json.loads(line).get("key") for line in json_lines.getvalue().splitlines()] == ["frontend"]
    assert "1 calls had no valid key; the last of them by " in caplog.text
    assert not any(secret in caplog.text + json_lines.getvalue() for secret in (key, "stolen"))
