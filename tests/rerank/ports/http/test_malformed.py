"""Malformed HTTP requests are refused with 4xx in the form of the API, and never break the service."""

import json
import random
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.http_client import JSON_TYPE
from tests.serving import TIMEOUT_S

SEEDS = 3
REQUESTS_PER_SEED = 250

#: Path → the fields of its errors; for other paths, and for /rerank without a known body, the fields of all APIs.
ERROR_FIELDS = {
    "/v1/rerank": {"message", "detail"},
    "/v2/rerank": {"message", "detail"},
    "/search": {"message", "code"},
    "/v1/ranking": {"error", "message", "detail"},
    "/v1/score": {"error", "message", "detail"},
    "/score": {"error", "message", "detail"},
    "/voyage/v1/rerank": {"error", "message", "detail"},
    "/pinecone/rerank": {"error", "message", "detail"},
}
ALL_FIELDS = {"message", "detail", "error", "error_type", "code"}
TAKES_TEXTS = {"query", "text_1", "text_2"}
APIS_OF_RERANK = ({"message", "detail"}, {"error", "error_type"}, {"message", "code"})

Case = tuple[str, str, bytes, dict[str, str]]

JUNK: list[Any] = [
    None, True, -1, 0, 2**70, 1.5, float("nan"), "", " ", "\ud800", "\x00", [], [[]], {}, {"a": 1}, [None], [1],
    ["", 2], {"text": 1}, [{"txt": "a"}], [{"text": None}], "documents", ["x" * 200_001], [""] * 1001,
]  # fmt: skip
#: Path → a request that would be answered.
VALID: dict[str, list[dict[str, Any]]] = {
    "/v1/rerank": [{"query": "q", "documents": ["a", "b"]}],
    "/v2/rerank": [{"query": "q", "documents": ["a", "b"]}],
    "/rerank": [
        {"query": "q", "documents": ["a", "b"]},
        {"query": "q", "texts": ["a", "b"]},
        {"query": "q", "candidates": [{"doc_id": "a", "text": "a"}]},
        {"query": "q", "documents": ["a", "b"], "property": ""},
    ],
    "/v1/ranking": [{"query": {"text": "q"}, "passages": [{"text": "a"}]}],
    "/v1/score": [{"text_1": "q", "text_2": ["a", "b"]}],
    "/score": [{"text_1": ["q"], "text_2": "a"}],
    "/voyage/v1/rerank": [{"query": "q", "documents": ["a", "b"]}],
    "/pinecone/rerank": [{"query": "q", "documents": [{"text": "a"}]}],
    "/search": [{"query": "q"}],
}
#: Junk that some field takes: null is an absent option everywhere, and a text or a list of texts may be right.
REQUIRED = {"query", "documents", "texts", "candidates", "passages", "text_1", "text_2"}


def with_junk(rng: random.Random) -> Case:
    """A valid request with junk in a required field, or with a field that does not exist."""
    path = rng.choice(list(VALID))
    body = dict(rng.choice(VALID[path]))
    if rng.random() < 0.2:
        body[f"unknown_{rng.randrange(1000)}"] = rng.choice([junk for junk in JUNK if junk is not None])
    else:
        field = rng.choice(sorted(body.keys() & REQUIRED))
        body[field] = rng.choice([junk for junk in JUNK if not (isinstance(junk, str) and field in TAKES_TEXTS)])
    return "POST", path, json.dumps(body).encode(), JSON_TYPE


def with_missing_field(rng: random.Random) -> Case:
    path = rng.choice(list(VALID))
    body = dict(rng.choice(VALID[path]))
    del body[rng.choice(sorted(body.keys() & REQUIRED))]
    return "POST", path, json.dumps(body).encode(), JSON_TYPE


def with_broken_json(rng: random.Random) -> Case:
    """The bytes of a valid request with a part cut out, bytes replaced, or nested too deeply."""
    path = rng.choice(list(VALID))
    body = bytearray(json.dumps(rng.choice(VALID[path])).encode())
    match rng.randrange(5):
        case 0:
            body = body[: rng.randrange(len(body))]
        case 1:
            body[rng.randrange(len(body))] = rng.choice(b"\xff\xc0\x80\x00")
        case 2:
            body = bytearray(b"[" * 100_000)
        case 3:
            body = bytearray(b'{"query":' * rng.choice([10, 300, 5000]) + b"1")
        case _:
            body = bytearray(rng.randbytes(rng.randrange(200)))
    return "POST", path, bytes(body), JSON_TYPE


def with_wrong_form(rng: random.Random) -> Case:
    """A valid request whose headers say that it is something else."""
    path = rng.choice(list(VALID))
    headers = rng.choice(
        [
            {"content-type": rng.choice(["", "text/plain", "application/xml", "multipart/x", "json", "/", ";"])},
            JSON_TYPE | {"content-encoding": rng.choice(["gzip", "br", "deflate", "gzip, gzip", "x"])},
            {"content-type": f"application/json; charset={rng.choice(['utf-16', 'latin-1', 'x', ''])}x"},
            JSON_TYPE | {"x-request-timeout-ms": rng.choice(["", "-1", "0", "1e3", "abc", "inf", "1 2"])},
        ]
    )
    return "POST", path, json.dumps(rng.choice(VALID[path])).encode(), headers


def with_wrong_route(rng: random.Random) -> Case:
    """A method that the path does not have, or a path that does not exist."""
    if rng.random() < 0.5:
        method = rng.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
        return method, rng.choice(list(VALID)), b"{}", JSON_TYPE
    path = rng.choice(["/v3/rerank", "/rerank/x", "/v1", "/%00", "/..%2f..%2fetc/passwd", "/RERANK", "/v1/rerank%0a"])
    return rng.choice(["GET", "POST", "PUT"]), path + str(rng.randrange(100)), b"{}", JSON_TYPE


KINDS: list[Callable[[random.Random], Case]] = [
    with_junk, with_missing_field, with_broken_json, with_wrong_form, with_wrong_route,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
def test_malformed_request_is_refused_in_the_form_of_the_api(http, seed):
    rng = random.Random(seed)
    connection = HTTPConnection(*http.host_and_port, timeout=TIMEOUT_S)
    for _ in range(REQUESTS_PER_SEED):
        case = method, path, body, headers = rng.choice(KINDS)(rng)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        shown = f"{method} {path} {headers} {body[:200]!r}: {response.status} {answer}"
        assert 400 <= response.status < 500, shown
        assert has_form_of(case, answer), shown
    connection.close()
    assert http.post("/rerank", {"query": "q", "texts": ["a"]}).status == 200


def has_form_of(case: Case, answer: dict[str, Any]) -> bool:
    method, path, _, _ = case
    if method == "POST" and path in ERROR_FIELDS:
        return answer.keys() >= ERROR_FIELDS[path]
    if method == "POST" and path == "/rerank":
        return any(answer.keys() >= fields for fields in APIS_OF_RERANK)
    return answer.keys() >= ALL_FIELDS


_HUGE = "1" + "0" * 400


@pytest.mark.parametrize("number", [f"-{_HUGE}", f"-{'9' * 4000}"])
@pytest.mark.parametrize(
    ("path", "field", "fields"),
    [
        ("/rerank", "first_stage_score", '"candidates": [{"doc_id": "a", "text": "a", "first_stage_score": NUMBER}]'),
        ("/search", "first_stage_weight", '"first_stage_weight": {"number": NUMBER}'),
        ("/search", "strategy", '"strategy": {"kind": NUMBER}'),
        ("/search", "strategy", '"strategy": {"kind": 1e400, "window_size": NUMBER}'),
        ("/search", "learning_rate", '"feedback": {"learning_rate": NUMBER}'),
        ("/search", "min_cosine", '"feedback": {"min_cosine": NUMBER}'),
        ("/search", "steps", '"feedback": {"steps": NUMBER}'),
        ("/v2/rerank", "top_n", '"documents": ["a"], "top_n": NUMBER'),
    ],
)
def test_number_of_hundreds_of_digits_is_refused_by_name(http, number, path, field, fields):
    reply = http.send("POST", path, f'{{"query": "q", {fields.replace("NUMBER", number)}}}'.encode(), JSON_TYPE)
    assert reply.status == 400
    assert field in reply.json["message"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00\x00",  # the beginning of TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # HTTP/2 without negotiation
        b"nonsense\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\ncontent-length: x\r\nhost: a\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n12345",
    ],
)
def test_bytes_that_are_not_http_get_4xx_and_an_end(http, sent):
    received = http.exchange(sent)
    assert not received or received.startswith(b"HTTP/1.1 4")
    assert http.get("/health").status == 200


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ("GET /health HTTP/1.1", "HTTP/1.1: Missing mandatory Host: header"),
        ("GET /health HTTP/9.9\r\nhost: a", "the version is HTTP/9.9; send HTTP/1.1"),
        (
            "POST /rerank HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ntransfer-encoding: chunked",
            "it has both Content-Length and Transfer-Encoding; send one of them",
        ),
    ],
)
def test_request_that_a_proxy_may_read_in_another_way_is_told_why(http, sent, problem):
    received = http.exchange(f"{sent}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n".encode())
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["message"].endswith(problem)


def test_damaged_body_of_another_type_gets_one_answer(http, caplog):
    """The application, which refuses the type, wrote a second one, and a traceback in the log."""
    head = b"POST /v2/rerank HTTP/1.1\r\nhost: localhost\r\ncontent-type: text\r\ntransfer-encoding: chunked"
    for _ in range(5):
        answer = http.exchange(head + b"\r\n\r\nno length\r\n")
        assert answer.count(b"HTTP/1.1 4") == 1
    assert not [record for record in caplog.records if record.exc_info]
