"""Messages of 16 MB with millions of fields, and compressed ones: refused at once, while others are served."""

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import grpc
import pytest
from grpc_health.v1 import health_pb2

from rerank.rankers.identity import IdentityRanker
from rerank.v1 import rerank_pb2 as pb
from tests.serving import REQUEST, RERANK, TIMEOUT_S, Served, numbered_candidates, refusal, running_service

INVALID = grpc.StatusCode.INVALID_ARGUMENT
MILLIONS = 8_000_000
LONG = "x" * MILLIONS
CASCADE = {"kind": "STRATEGY_KIND_CASCADE", "preranker": LONG}
LEGAL = REQUEST.SerializeToString()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with running_service({"identity": IdentityRanker()}) as served:
        yield served


@contextmanager
def stalls(served: Served) -> Iterator[list[float]]:
    """The seconds of processor time that the event loop of a service spends between two turns.

    The time on the clock would also count what other processes do.
    """
    turns_s, ended = list[float](), threading.Event()

    def turn() -> None:
        turns_s.append(time.thread_time())
        if not ended.is_set():
            served.loop.call_later(0.005, turn)

    seconds = list[float]()
    served.loop.call_soon_threadsafe(turn)
    yield seconds
    ended.set()
    seconds += [after - before for before, after in pairwise(turns_s)]


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
def test_millions_of_fields_are_refused_before_they_are_parsed(served, method, message, problem):
    with stalls(served) as seconds:
        call = served.channel.unary_unary(f"/rerank.v1.RerankService/{method}")
        error = refusal(lambda: call(message, timeout=TIMEOUT_S))
    assert error.code is INVALID
    assert problem in error.message
    assert max(seconds, default=0) < 1  # eight million candidates took 2 to 9 s


@pytest.mark.parametrize("method", ["Check", "Watch"])
@pytest.mark.parametrize(
    "message",
    [b"\x78\x00" * MILLIONS, health_pb2.HealthCheckRequest(service=LONG).SerializeToString()],
    ids=["fields", "name"],
)
def test_large_health_checks_are_refused(served, method, message):
    call = served.channel.unary_stream(f"/grpc.health.v1.Health/{method}")
    assert refusal(lambda: next(call(message, timeout=TIMEOUT_S))).code is INVALID
    assert served.health == "SERVING"


@pytest.mark.parametrize(
    ("fields", "code", "problem"),
    [
        ({"model": LONG}, grpc.StatusCode.NOT_FOUND, r"model 'x+ … .*x' is not one of identity"),
        ({"strategy": CASCADE}, INVALID, r"'x+ … .*of identity: there is no such model"),
        ({"candidates": [{"doc_id": LONG, "text": "t"}] * 2}, INVALID, "8000000 characters exceed the limit of 500"),
    ],
    ids=["model", "preranker", "doc_id"],
)
def test_long_names_are_quoted_in_part(served, fields, code, problem):
    request = pb.RerankRequest(**{"query": "q", "candidates": numbered_candidates([1])} | fields)
    error = refusal(lambda: served.channel.unary_unary(RERANK)(request.SerializeToString(), timeout=TIMEOUT_S))
    assert error.code is code
    assert re.search(problem, error.message), error.message


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize(
    "message", [LEGAL, b"\x12\x00" * MILLIONS, bytes(20_000_000)], ids=["small", "candidates", "oversized"]
)
def test_compressed_messages_are_refused_and_log_no_traceback(served, compression, message, caplog):
    caplog.set_level(logging.WARNING)
    for method in (RERANK, "/grpc.health.v1.Health/Check"):
        call = served.channel.unary_unary(method)
        error = refusal(lambda call=call: call(message, compression=compression, timeout=TIMEOUT_S))
        assert error.code is grpc.StatusCode.UNIMPLEMENTED
        assert "is disabled" in error.message
    assert len(served.channel.unary_unary(RERANK)(LEGAL, timeout=TIMEOUT_S)) > 0
    assert not caplog.records
