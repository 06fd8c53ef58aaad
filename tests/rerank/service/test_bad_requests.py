"""Every way to ask wrongly has its own status with the field to blame, and none is ours: never INTERNAL or UNKNOWN."""

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

UNKNOWN = 99  # enums of proto3 are open: any number may arrive
TOO_LONG = 5 * 1024 * 1024


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


#: What is wrong → the requests, their status, the field to blame, and words of the message.
BAD: dict[str, tuple[Sequence[Message], grpc.StatusCode, str, str]] = {
    "empty query": (both(query=""), INVALID, "query", "the query is empty"),
    "blank query": (both(query=" \n\t\u2003"), INVALID, "query", "the query is empty"),
    "query of control characters": (both(query="\x00\x7f"), INVALID, "query", "the query is empty"),
    "long query": (both(query="x" * 8001), INVALID, "query", "8001 characters exceed the limit of 8000"),
    "query of many tokens": (both(query="flea " * 300), INVALID, "query", "300 tokens long"),
    "long instruction": (both(instruction="x" * 8001), INVALID, "instruction", "8001 characters exceed"),
    "instruction of many tokens": (both(instruction="flea " * 300), INVALID, "query", "tokens long"),
    "unknown model": (both(model="gpt"), NOT_FOUND, "", "'gpt' is none of pe-rank, identity, number"),
    "model by path": (both(model="/etc/passwd"), NOT_FOUND, "", "'/etc/passwd' is none of"),
    "negative top_n": (both(top_n=-1), INVALID, "top_n", "-1 is negative"),
    "negative window_size": (
        both(strategy=strategy(window_size=-1)),
        INVALID,
        "strategy.window_size",
        "-1 is negative",
    ),
    "negative stride": (both(strategy=strategy(stride=-1)), INVALID, "strategy.stride", "-1 is negative"),
    "window of one": (both(strategy=strategy(window_size=1)), INVALID, "strategy.window_size", "use at least 2"),
    "single window of one": (
        both(strategy=strategy(kind=pb.STRATEGY_KIND_SINGLE, window_size=1)),
        INVALID,
        "strategy.window_size",
        "use at least 2",
    ),
    "window too wide": (
        both(strategy=strategy(window_size=2**31 - 1)),
        INVALID,
        "strategy.window_size",
        r"window_size 2147483647 exceeds the (\d+) passages that pe-rank reads at once; use at most \1",
    ),
    "stride past the window": (
        both(strategy=strategy(window_size=4, stride=5)),
        INVALID,
        "strategy.stride",
        "stride 5 is outside 1..window_size; use at most 4",
    ),
    "unknown strategy": (both(strategy=strategy(kind=UNKNOWN)), INVALID, "strategy.kind", "99 is no value"),
    "unknown first stage": ([search(first_stage=UNKNOWN)], INVALID, "first_stage", "99 is no value"),
    "negative depth": ([search(depth=-1)], INVALID, "depth", "-1 is negative"),
    "depth too large": ([search(depth=1001)], INVALID, "depth", "1001 candidates exceed the limit of 1000"),
    "no candidates": ([rerank([])], INVALID, "candidates", "send at least one"),
    "too many candidates": (
        [rerank([passage(f"d{number}") for number in range(1001)])],
        INVALID,
        "candidates",
        "1001 candidates exceed the limit of 1000",
    ),
    "doc_id twice": (
        [rerank([passage("a"), passage("a")])],
        INVALID,
        "candidates[1].doc_id",
        "at candidates.0. already",
    ),
    "empty doc_id": ([rerank([passage("")])], INVALID, "candidates[0].doc_id", "is empty or holds white space"),
    "doc_id with a blank": ([rerank([passage("a b")])], INVALID, "candidates[0].doc_id", "'a b' is empty or holds"),
    "long doc_id": ([rerank([passage("a" * 501)])], INVALID, "candidates[0].doc_id", "501 characters exceed"),
    "candidate without text": ([rerank([pb.Candidate(doc_id="a")])], INVALID, "candidates[0].text", "neither text nor"),
    "unknown reference": (
        [rerank([pb.Candidate(doc_id="flea", in_index=True), pb.Candidate(doc_id="nope", in_index=True)])],
        NOT_FOUND,
        "",
        "1 of 2 passages are not in the index: 'nope'",
    ),
    "passage of 5 MB": (
        [rerank([passage(text="x" * TOO_LONG)])],
        INVALID,
        "candidates[0].text",
        f"{TOO_LONG} characters exceed the limit of 200000",
    ),
    "message over the limit": ([rerank([passage(text="x" * 17 * 1024 * 1024)])], EXHAUSTED, "", "larger than max"),
}

CASES = {
    f"{name}, {type(request).__name__.removesuffix('Request')}": (request, *expected)
    for name, (requests, *expected) in BAD.items()
    for request in requests
}


#: Requests whose refusal names something long.
QUOTED = {
    "long model": (rerank(model="x" * 100_000), NOT_FOUND),
    "long doc_id twice": (rerank([passage("x" * 100_000), passage("x" * 100_000)]), INVALID),
    "long doc_ids unknown": (
        rerank([pb.Candidate(doc_id="é" * 499 + str(number), in_index=True) for number in range(6)]),
        NOT_FOUND,
    ),
}

METHODS = ["Rerank", "Search", "ListModels"]
TEXTS = st.text(max_size=20)
INT32S = st.one_of(st.integers(-3, 30), st.integers(-(2**31), 2**31 - 1))


def ask(stub: RerankServiceStub, request: Message) -> Refusal:
    method = stub.Search if isinstance(request, pb.SearchRequest) else stub.Rerank
    return refusal(lambda: method(request, timeout=TIMEOUT_S))


def raw(channel: grpc.Channel, method: str) -> grpc.UnaryUnaryMultiCallable:
    """Sends bytes as they are."""
    return channel.unary_unary(f"/rerank.v1.RerankService/{method}")


def assert_not_our_fault(call: Callable[[], object]) -> None:
    code = grpc.StatusCode.OK
    try:
        call()
    except grpc.RpcError as error:
        code = error.code()
    assert code in {grpc.StatusCode.OK, INVALID, NOT_FOUND}


@pytest.mark.parametrize(("request_", "code", "field", "message"), CASES.values(), ids=CASES)
def test_bad_request_has_its_status_and_its_field(
    stub: RerankServiceStub, request_: Message, code: grpc.StatusCode, field: str, message: str
) -> None:
    answer = ask(stub, request_)
    assert (answer.code, answer.fields) == (code, [field] if field else []), answer.message
    assert re.search(message, answer.message), answer.message


@pytest.mark.parametrize(("request_", "code"), QUOTED.values(), ids=QUOTED)
def test_what_the_answer_quotes_fits_into_headers(
    stub: RerankServiceStub, request_: Message, code: grpc.StatusCode
) -> None:
    assert ask(stub, request_).code is code


@pytest.mark.parametrize("method", ["Rerank", "Search"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x7f"], ids=["tag", "utf-8", "length"])
def test_garbage_is_an_invalid_request(channel: grpc.Channel, method: str, data: bytes) -> None:
    answer = refusal(lambda: raw(channel, method)(data, timeout=TIMEOUT_S))
    assert (answer.code, answer.fields) == (INVALID, ["request"])
    assert "the bytes are no message of this type" in answer.message


def test_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    answer = refusal(lambda: raw(channel, "Rank")(b"", timeout=TIMEOUT_S))
    assert answer.code is grpc.StatusCode.UNIMPLEMENTED


@settings(max_examples=60, deadline=None, derandomize=True)
@given(method=st.sampled_from(METHODS), data=st.binary(max_size=64))
def test_no_bytes_are_our_fault(channel: grpc.Channel, method: str, data: bytes) -> None:
    assert_not_our_fault(lambda: raw(channel, method)(data, timeout=TIMEOUT_S))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    query=TEXTS,
    doc_ids=st.lists(TEXTS, max_size=4),
    text=TEXTS,
    model=st.sampled_from(["", "pe-rank", "identity", "number"]),
    numbers=st.tuples(INT32S, INT32S, INT32S, INT32S),
    score=st.floats(),
)
def test_no_request_is_our_fault(
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
    assert_not_our_fault(lambda: stub.Rerank(rerank(candidates, **options), timeout=TIMEOUT_S))
    assert_not_our_fault(lambda: stub.Search(search(depth=depth, **options), timeout=TIMEOUT_S))


def test_service_goes_on_after_bad_requests(stub: RerankServiceStub) -> None:
    for request in BAD["message over the limit"][0]:
        ask(stub, request)
    assert len(stub.Rerank(rerank(), timeout=TIMEOUT_S).results) == 1
