"""HTTP calls of the trials: the dialects, and how each call ended."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rerank.config.http import HttpConfig
from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.requests import made_request
from scripts.trials import http_calls
from tests.http_client import serving_http
from tests.serving import reranker_of


@contextmanager
def answering(status: int, body: object, **headers: str) -> Iterator[str]:
    """A server that answers every request so; yields its address. Status 0 closes the connection instead."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def end_of_call(address: str) -> str:
    reference = http_calls.HttpReference(http_calls.HttpRequest("/v2/rerank", {}), {"0": 0.5, "1": 0.25})

    async def ask() -> str:
        async with http_calls.http_calls(address, [reference]) as call:
            return str((await call(0)).status)

    return asyncio.run(ask())


def results(*scores: float) -> dict[str, object]:
    return {"results": [{"index": place, "relevance_score": score} for place, score in enumerate(scores)]}


@pytest.mark.parametrize(
    ("status", "body", "headers", "end", "is_clean"),
    [
        (200, results(0.5, 0.2501), {}, "200", True),
        (200, results(0.25, 0.5), {}, "200 with a wrong answer", False),
        (200, results(0.5), {}, "200 with a wrong answer", False),
        (503, {}, {"Retry_After": "1"}, "503 with Retry-After", True),
        (503, {}, {}, "503", False),
        (429, {}, {"Retry_After": "1"}, "429 with Retry-After", True),
        (500, {}, {}, "500", False),
        (0, {}, {}, "connection closed", True),
    ],
)
def test_end_of_a_call_is_named(status: int, body: object, headers: dict[str, str], end: str, is_clean: bool) -> None:
    with answering(status, body, **headers) as address:
        assert end_of_call(address) == end
    assert (end in http_calls.CLEAN) is is_clean


def test_call_without_a_server_is_refused() -> None:
    with answering(200, {}) as address:
        pass
    assert end_of_call(address) == "connection refused"


def test_every_dialect_is_asked_and_answers_the_same_again(encoder: Encoder) -> None:
    draw = random.Random(0)
    sliding = pb.Strategy(kind="STRATEGY_KIND_SLIDING", window_size=4, stride=2)
    messages = [made_request(draw, "identity", 5, 40), made_request(draw, "identity", 9, 40, strategy=sliding)]
    requests = http_calls.http_requests(messages)
    assert [each.path for each in requests] == ["/rerank", "/v1/rerank", "/v2/rerank", "/rerank", "/rerank", "/rerank"]
    assert [next(iter(each.body.keys() & {"candidates", "documents", "texts"})) for each in requests] == [
        *("candidates", "documents", "documents", "documents", "texts", "candidates")
    ]
    settings = HttpConfig(listen="127.0.0.1:0")
    with serving_http(reranker_of(encoder, {"identity": IdentityRanker()}, http=settings)) as (_, client):
        references = asyncio.run(http_calls.http_references(client.address, requests))
        assert [len(reference.scores) for reference in references] == [5, 5, 5, 5, 5, 9]
        assert all(asyncio.run(http_calls.answers_rightly(client.address, reference)) for reference in references)
