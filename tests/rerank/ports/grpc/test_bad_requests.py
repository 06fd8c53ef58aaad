"""Invalid requests over a real socket: each has its status and names its field, and none is INTERNAL or UNKNOWN."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, Refusal, refusal

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def passage(doc_id: str = "a", text: str = "text") -> pb.Candidate:
    return pb.Candidate(doc_id=doc_id, text=text)


def rerank(candidates: Sequence[pb.Candidate] = (passage(),), **fields: object) -> pb.RerankRequest:
    return pb.RerankRequest(**{"query": "q", "candidates": candidates} | fields)


def search(**fields: object) -> pb.SearchRequest:
    return pb.SearchRequest(**{"query": "q"} | fields)


def strategy(**fields: object) -> pb.Strategy:
    return pb.Strategy(**fields)


def both(**fields: object) -> list[pb.RerankRequest | pb.SearchRequest]:
    return [rerank(**fields), search(**fields)]


#: Description → requests, status, invalid field, and a pattern in the message. Some of these requests are refused by
#: `rerank.service.requests`, whose tests have all of its checks; the others are refused by other modules.
BAD: dict[str, tuple[Sequence[Message], grpc.StatusCode, str, str]] = {
    "unknown model": (both(model="gpt"), NOT_FOUND, "", "pe-rank, identity, number"),
    "window too wide": (
        both(strategy=strategy(window_size=2**31 - 1)),
        INVALID,
        "strategy.window_size",
        r"2147483647 exceeds the (\d+) passages .*; use at most \1",
    ),
    "feedback with bm25": (
        [search(first_stage=pb.FIRST_STAGE_BM25, feedback=pb.Feedback())],
        INVALID,
        "feedback",
        "bm25 has no query vector",
    ),
    "unknown reference": (
        [rerank([pb.Candidate(doc_id="flea", in_index=True), pb.Candidate(doc_id="nope", in_index=True)])],
        NOT_FOUND,
        "",
        "1 of 2 passages are not in the index: 'nope'",
    ),
    "long unknown references, whose status fits into headers": (
        [rerank([pb.Candidate(doc_id="é" * 499 + str(number), in_index=True) for number in range(6)])],
        NOT_FOUND,
        "",
        "6 of 6 passages are not in the index",
    ),
    "message over the limit": ([rerank([passage(text="x" * 17 * 1024 * 1024)])], EXHAUSTED, "", "larger than max"),
}

CASES = {
    f"{name}, {type(request).__name__.removesuffix('Request')}": (request, *expected)
    for name, (requests, *expected) in BAD.items()
    for request in requests
}


TEXTS = st.text(max_size=20)
INT32S = st.one_of(st.integers(-3, 30), st.integers(-(2**31), 2**31 - 1))


def error_of(stub: RerankServiceStub, request: Message) -> Refusal:
    method = stub.Search if isinstance(request, pb.SearchRequest) else stub.Rerank
    return refusal(lambda: method(request, timeout=TIMEOUT_S))


def raw(channel: grpc.Channel, method: str) -> grpc.UnaryUnaryMultiCallable:
    """A method that sends bytes unchanged."""
    return channel.unary_unary(f"/rerank.v1.RerankService/{method}")


def assert_succeeds_or_is_refused(call: Callable[[], object]) -> None:
    code = grpc.StatusCode.OK
    try:
        call()
    except grpc.RpcError as error:
        code = error.code()
    assert code in {grpc.StatusCode.OK, INVALID, NOT_FOUND}


@pytest.mark.parametrize(("request_", "code", "field", "message"), CASES.values(), ids=CASES)
def test_invalid_request_has_its_status_and_names_its_field(
    stub: RerankServiceStub, request_: Message, code: grpc.StatusCode, field: str, message: str
) -> None:
    error = error_of(stub, request_)
    assert (error.code, error.fields) == (code, [field] if field else []), error.message
    assert re.search(message, error.message), error.message


@pytest.mark.parametrize("method", ["Rerank", "Search"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x7f"], ids=["tag", "utf-8", "length"])
def test_bytes_that_cannot_be_parsed_are_an_invalid_request(channel: grpc.Channel, method: str, data: bytes) -> None:
    error = refusal(lambda: raw(channel, method)(data, timeout=TIMEOUT_S))
    assert (error.code, error.fields) == (INVALID, ["request"])
    assert "the bytes are not a message of this type" in error.message


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    query=TEXTS,
    doc_ids=st.lists(TEXTS, max_size=4),
    text=TEXTS,
    model=st.sampled_from(["", "pe-rank", "identity", "number"]),
    numbers=st.tuples(INT32S, INT32S, INT32S, INT32S),
    score=st.floats(),
)
def test_random_requests_never_cause_an_internal_error(
    stub: RerankServiceStub,
    query: str,
    doc_ids: list[str],
    text: str,
    model: str,
    numbers: tuple[int, int, int, int],
    score: float,
) -> None:
    top_n, depth, window_size, stride = numbers
    options = {"query": query, "model": model, "top_n": top_n, "instruction": text}
    options["strategy"] = strategy(window_size=window_size, stride=stride)
    candidates = [pb.Candidate(doc_id=doc_id, text=text, first_stage_score=score) for doc_id in doc_ids]
    assert_succeeds_or_is_refused(lambda: stub.Rerank(rerank(candidates, **options), timeout=TIMEOUT_S))
    assert_succeeds_or_is_refused(lambda: stub.Search(search(depth=depth, **options), timeout=TIMEOUT_S))
