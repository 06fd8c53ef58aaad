"""Messages of 16 MB with millions of fields, and compressed ones: refused at once, while others are served."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from rerank.access.credentials import PLAIN
from rerank.client.client import check_health
from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.v1 import rerank_pb2 as pb
from tests.serving import TIMEOUT_S, Served, numbered_candidates, refusal, reranker_of, serving

INVALID = grpc.StatusCode.INVALID_ARGUMENT
RERANK = "/rerank.v1.RerankService/Rerank"
MILLIONS = 8_000_000
LEGAL = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2])).SerializeToString()


@pytest.fixture(scope="module")
def served(encoder: Encoder) -> Iterator[Served]:
    with serving(reranker_of(encoder, {"identity": IdentityRanker()})) as served:
        yield served


@pytest.fixture(scope="module")
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


class Stalls:
    """The longest processor time that the event loop of a service spent between two turns, in seconds.

    The time on the clock would also count what other processes do.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self.longest_s = 0.0

    def __enter__(self) -> Stalls:
        self._end = threading.Event()
        self._before_s: float | None = None
        self._served.loop.call_soon_threadsafe(self._tick)
        return self

    def _tick(self) -> None:
        now_s = time.thread_time()
        if self._before_s is not None:
            self.longest_s = max(self.longest_s, now_s - self._before_s)
        self._before_s = now_s
        if not self._end.is_set():
            self._served.loop.call_later(0.005, self._tick)

    def __exit__(self, *_: object) -> None:
        self._end.set()


@pytest.mark.parametrize(
    ("method", "message", "problem"),
    [
        ("Rerank", b"\x12\x00" * MILLIONS, "at most 1000 candidates"),
        ("Rerank", LEGAL + b"\x12\x02\x78\x00" * (MILLIONS // 2), "at most 1000 candidates"),
        ("Rerank", LEGAL + b"\x78\x00" * MILLIONS, "more than 8064 fields"),
        ("Rerank", b"\x7b\x7c" * MILLIONS, "more than 8064 fields"),
        ("Search", b"\x0a\x01q" + b"\x52\x00" * MILLIONS, "more than 8064 fields"),
        ("ListModels", b"\x78\x00" * MILLIONS, "more than 8064 fields"),
    ],
    ids=["candidates", "candidates with unknown fields", "unknown fields", "groups", "feedback", "of an empty message"],
)
def test_millions_of_fields_are_refused_before_they_are_parsed(
    served: Served, channel: grpc.Channel, method: str, message: bytes, problem: str
) -> None:
    with Stalls(served) as stalls:
        call = channel.unary_unary(f"/rerank.v1.RerankService/{method}")
        error = refusal(lambda: call(message, timeout=TIMEOUT_S))
    assert error.code is INVALID
    assert problem in error.message
    assert stalls.longest_s < 1  # eight million candidates took 2 to 9 s


@pytest.mark.parametrize("method", ["Check", "Watch"])
@pytest.mark.parametrize(
    "message",
    [b"\x78\x00" * MILLIONS, health_pb2.HealthCheckRequest(service="x" * 8_000_000).SerializeToString()],
    ids=["fields", "name"],
)
def test_large_health_checks_are_refused(served: Served, channel: grpc.Channel, method: str, message: bytes) -> None:
    call = channel.unary_stream(f"/grpc.health.v1.Health/{method}")
    assert refusal(lambda: next(call(message, timeout=TIMEOUT_S))).code is INVALID
    assert check_health(served.address, PLAIN, TIMEOUT_S) == "SERVING"


LONG = "x" * 8_000_000


@pytest.mark.parametrize(
    ("fields", "code", "problem"),
    [
        ({"model": LONG}, grpc.StatusCode.NOT_FOUND, r"model 'x+ … .*x' is not one of identity"),
        (
            {"strategy": {"kind": "STRATEGY_KIND_CASCADE", "preranker": LONG}},
            INVALID,
            r"'x+ … .*of identity: there is no such model",
        ),
        ({"candidates": [{"doc_id": LONG, "text": "t"}] * 2}, INVALID, "8000000 characters exceed the limit of 500"),
    ],
    ids=["model", "preranker", "doc_id"],
)
def test_long_names_are_quoted_in_part(channel: grpc.Channel, fields: Any, code: grpc.StatusCode, problem: str) -> None:
    request = pb.RerankRequest(**{"query": "q", "candidates": numbered_candidates([1])} | fields)
    error = refusal(lambda: channel.unary_unary(RERANK)(request.SerializeToString(), timeout=TIMEOUT_S))
    assert error.code is code
    assert re.search(problem, error.message), error.message


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize(
    "message", [LEGAL, b"\x12\x00" * MILLIONS, bytes(20_000_000)], ids=["small", "candidates", "oversized"]
)
def test_compressed_messages_are_refused_and_log_no_traceback(
    channel: grpc.Channel, compression: Any, message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for method in (RERANK, "/grpc.health.v1.Health/Check"):
        call = channel.unary_unary(method)
        error = refusal(lambda call=call: call(message, compression=compression, timeout=TIMEOUT_S))
        assert error.code is grpc.StatusCode.UNIMPLEMENTED
        assert "is disabled" in error.message
    assert len(channel.unary_unary(RERANK)(LEGAL, timeout=TIMEOUT_S)) > 0
    assert not caplog.records
