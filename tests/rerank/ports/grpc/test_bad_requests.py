"""Invalid requests over a real socket: each has its status and names its field, and none is INTERNAL or UNKNOWN."""

import re

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.names import SERVICE
from rerank.v1 import rerank_pb2 as pb
from tests.serving import TIMEOUT_S, references, refusal

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def rerank(*candidates: pb.Candidate, **fields: object) -> pb.RerankRequest:
    return pb.RerankRequest(query="q", candidates=candidates or [pb.Candidate(doc_id="a", text="text")], **fields)


def search(**fields: object) -> pb.SearchRequest:
    return pb.SearchRequest(query="q", **fields)


UNKNOWN = {"model": "gpt"}
WIDE = {"strategy": pb.Strategy(window_size=2**31 - 1)}
TOO_WIDE = r"2147483647 exceeds the (\d+) passages .*; use at most \1"
BM25 = {"first_stage": pb.FIRST_STAGE_BM25, "feedback": pb.Feedback()}
LONG_IDS = ["é" * 499 + str(number) for number in range(6)]
LARGE = pb.Candidate(doc_id="a", text="x" * 17 * 1024 * 1024)
#: Description → request, status, invalid field, and a pattern in the message. Some of these requests are refused by
#: `rerank.service.requests`, whose tests have all of its checks; the others are refused by other modules.
CASES: dict[str, tuple[Message, grpc.StatusCode, str, str]] = {
    "unknown model, Rerank": (rerank(**UNKNOWN), NOT_FOUND, "", "pe-rank, identity, number"),
    "unknown model, Search": (search(**UNKNOWN), NOT_FOUND, "", "pe-rank, identity, number"),
    "window too wide, Rerank": (rerank(**WIDE), INVALID, "strategy.window_size", TOO_WIDE),
    "window too wide, Search": (search(**WIDE), INVALID, "strategy.window_size", TOO_WIDE),
    "feedback with bm25": (search(**BM25), INVALID, "feedback", "bm25 has no query vector"),
    "unknown reference": (rerank(*references("flea", "nope")), NOT_FOUND, "", "1 of 2 .* not in the index: 'nope'"),
    "long references, whose status fits into headers": (
        rerank(*references(*LONG_IDS)),
        NOT_FOUND,
        "",
        "6 of 6 passages",
    ),
    "message over the limit": (rerank(LARGE), EXHAUSTED, "", "larger than max"),
}
TEXTS = st.text(max_size=20)
INT32S = st.one_of(st.integers(-3, 30), st.integers(-(2**31), 2**31 - 1))


@pytest.mark.parametrize(("request_", "code", "field", "message"), CASES.values(), ids=CASES)
def test_invalid_request_has_its_status_and_names_its_field(stub, request_, code, field, message):
    method = stub.Search if isinstance(request_, pb.SearchRequest) else stub.Rerank
    error = refusal(lambda: method(request_, timeout=TIMEOUT_S))
    assert (error.code, error.fields) == (code, [field] if field else []), error.message
    assert re.search(message, error.message), error.message


@pytest.mark.parametrize("method", ["Rerank", "Search"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x7f"], ids=["tag", "utf-8", "length"])
def test_bytes_that_cannot_be_parsed_are_an_invalid_request(channel, method, data):
    call = channel.unary_unary(f"/{SERVICE}/{method}")
    error = refusal(lambda: call(data, timeout=TIMEOUT_S))
    assert (error.code, error.fields) == (INVALID, ["request"])
    assert "the bytes are not a message of this type" in error.message


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    options=st.fixed_dictionaries(
        {"query": TEXTS, "instruction": TEXTS, "top_n": INT32S}
        | {"model": st.sampled_from(["", "pe-rank", "identity", "number"])}
        | {"strategy": st.builds(pb.Strategy, window_size=INT32S, stride=INT32S)}
    ),
    candidates=st.lists(st.builds(pb.Candidate, doc_id=TEXTS, text=TEXTS, first_stage_score=st.floats()), max_size=4),
    depth=INT32S,
)
def test_random_requests_never_cause_an_internal_error(stub, options, candidates, depth):
    for call, request in (
        (stub.Rerank, pb.RerankRequest(candidates=candidates, **options)),
        (stub.Search, pb.SearchRequest(depth=depth, **options)),
    ):
        assert call.future(request, timeout=TIMEOUT_S).code() in {grpc.StatusCode.OK, INVALID, NOT_FOUND}
