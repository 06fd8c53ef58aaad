"""Malformed HTTP requests are refused with 4xx in the form of the API, and never break the service."""

import json
import random
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.http_client import JSON_TYPE
from tests.serving import TIMEOUT_S

SEEDS = 3
REQUESTS_PER_SEED = 250

#: Path → the fields of its errors, or one of several; for other paths and methods, the fields of all APIs.
OWN = {"message", "code"}
BOTH, ALL_FIELDS = {"error", "message", "detail"}, {"message", "detail", "error", "error_type", "code"}
FIELDS_OF_ERRORS = {
    **dict.fromkeys(("/v1/rerank", "/v2/rerank"), ({"message", "detail"},)),
    **dict.fromkeys(("/v1/ranking", "/v1/score", "/score", "/voyage/v1/rerank", "/pinecone/rerank"), (BOTH,)),
    "/rerank": ({"message", "detail"}, {"error", "error_type"}, OWN),
    "/search": (OWN,),
}
TAKES_TEXTS = {"query", "text_1", "text_2"}

Case = tuple[str, str, bytes, dict[str, str]]

JUNK: list[Any] = [
    None, True, -1, 0, 2**70, 1.5, float("nan"), "", " ", "\ud800", "\x00", [], [[]], {}, {"a": 1}, [None], [1],
    ["", 2], {"text": 1}, [{"txt": "a"}], [{"text": None}], "documents", ["x" * 200_001], [""] * 1001,
]  # fmt: skip
DOCUMENTS = [{"query": "q", "documents": ["a", "b"]}]
#: Path → a request that would be answered.
VALID: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/voyage/v1/rerank"), DOCUMENTS),
    "/rerank": [
        *DOCUMENTS,
        {"query": "q", "texts": ["a", "b"]},
        {"query": "q", "candidates": [{"doc_id": "a", "text": "a"}]},
        {"query": "q", "documents": ["a", "b"], "property": ""},
    ],
    "/v1/ranking": [{"query": {"text": "q"}, "passages": [{"text": "a"}]}],
    "/v1/score": [{"text_1": "q", "text_2": ["a", "b"]}],
    "/score": [{"text_1": ["q"], "text_2": "a"}],
    "/pinecone/rerank": [{"query": "q", "documents": [{"text": "a"}]}],
    "/search": [{"query": "q"}],
}
#: Junk that some field takes: null is an absent option everywhere, and a text or a list of texts may be right.
REQUIRED = {"query", "documents", "texts", "candidates", "passages", "text_1", "text_2"}


#: Headers that say that a body is something else.
FORMS = [
    *({"content-type": kind} for kind in ("", "text/plain", "application/xml", "multipart/x", "json", "/", ";")),
    *({"content-encoding": name} for name in ("gzip", "br", "deflate", "gzip, gzip", "x")),
    *({"content-type": f"application/json; charset={name}"} for name in ("utf-16x", "latin-1x", "xx", "x")),
    *({"x-request-timeout-ms": value} for value in ("", "-1", "0", "1e3", "abc", "inf", "1 2")),
]
#: Methods that a path does not have, and paths that do not exist.
ROUTES = [
    *((method, path) for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW") for path in VALID),
    *((method, f"{path}7") for method in ("GET", "POST", "PUT") for path in
      ("/v3/rerank", "/rerank/x", "/v1", "/%00", "/..%2f..%2fetc/passwd", "/RERANK", "/v1/rerank%0a")),
]  # fmt: skip


def malformed(rng: random.Random) -> Case:
    """A request that is valid but for one thing: its method, path, body and headers."""
    method, path, headers = "POST", rng.choice(list(VALID)), JSON_TYPE
    body = dict(rng.choice(VALID[path]))
    field = rng.choice(sorted(body.keys() & REQUIRED))
    sent = bytearray(json.dumps(body).encode())
    match rng.choice(["junk", "unknown", "missing", "cut", "not utf-8", "lists", "nested", "random", "form", "route"]):
        case "junk":
            body[field] = rng.choice([junk for junk in JUNK if not (isinstance(junk, str) and field in TAKES_TEXTS)])
            sent = json.dumps(body).encode()
        case "unknown":
            unknown = {f"unknown_{rng.randrange(1000)}": rng.choice([junk for junk in JUNK if junk is not None])}
            sent = json.dumps(body | unknown).encode()
        case "missing":
            del body[field]
            sent = json.dumps(body).encode()
        case "cut":
            sent = sent[: rng.randrange(len(sent))]
        case "not utf-8":
            sent[rng.randrange(len(sent))] = rng.choice(b"\xff\xc0\x80\x00")
        case "lists":
            sent = b"[" * 100_000
        case "nested":
            sent = b'{"query":' * rng.choice([10, 300, 5000]) + b"1"
        case "random":
            sent = rng.randbytes(rng.randrange(200))
        case "form":
            headers = headers | rng.choice(FORMS)
        case "route":
            method, path = rng.choice(ROUTES)
    return method, path, bytes(sent), headers


@pytest.mark.parametrize("seed", range(SEEDS))
def test_malformed_request_is_refused_in_the_form_of_the_api(http, seed):
    rng = random.Random(seed)
    connection = HTTPConnection(*http.host_and_port, timeout=TIMEOUT_S)
    for _ in range(REQUESTS_PER_SEED):
        method, path, body, headers = malformed(rng)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        shown = f"{method} {path} {headers} {body[:200]!r}: {response.status} {answer}"
        assert 400 <= response.status < 500, shown
        forms = FIELDS_OF_ERRORS.get(path, (ALL_FIELDS,)) if method == "POST" else (ALL_FIELDS,)
        assert any(answer.keys() >= fields for fields in forms), shown
    connection.close()
    assert http.post("/rerank", {"query": "q", "texts": ["a"]}).status == 200


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
