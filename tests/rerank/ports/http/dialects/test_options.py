"""The fields that all dialects share: accepted without effect, refused by name, or followed as far as possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rerank.checkpoints.relevance import OWN_LOG_ODDS
from rerank.config.http import HttpConfig
from rerank.errors import InvalidRequest
from rerank.models.encoder import Encoder
from rerank.ports.http.dialects.table import chosen, dialects
from rerank.types import Ranking, ScoreKind
from tests.fakes import NumberRanker
from tests.http_client import HttpClient, Reply, http_service, texts
from tests.traces import trace_of

NUMBERS = (0.25, 0.875, 0.5)


@pytest.fixture(scope="module")
def http(encoder: Encoder) -> Iterator[HttpClient]:
    """A service with "probability", whose scores are a relevance, and "number", which gives none."""
    ranker = NumberRanker()
    ranker.info = replace(ranker.info, score_kind=ScoreKind.POINTWISE_PROBABILITY, relevance=OWN_LOG_ODDS)
    aliases = {"rerank-v3.5": "probability", "*": "number"}
    settings = HttpConfig(listen="127.0.0.1:0", model_aliases=aliases)
    with http_service(encoder, {"probability": ranker, "number": NumberRanker()}, http=settings) as (_, client):
        yield client


def asked(http: HttpClient, path: str = "/v2/rerank", **fields: Any) -> Reply:
    return http.post(path, {"query": "q", "documents": texts(*NUMBERS)} | fields)


def indexes(reply: Reply) -> list[int]:
    assert reply.status == 200, reply.body
    return [row["index"] for row in reply.json["results"]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user", "someone"),
        ("return_len", "true"),
        ("overlap_tokens", 80),
        ("truncate_prompt_tokens", -1),
        ("max_tokens_per_query", 9),
        ("truncate", "END"),
        ("truncation", True),
        ("encoding_format", "float"),
        ("priority", 5),
        ("metadata", {"a": [{"b": "c"}]}),
    ],
)
def test_field_that_cannot_change_the_order_is_accepted_and_told(http: HttpClient, field: str, value: object) -> None:
    reply = asked(http, **{field: value})
    assert indexes(reply) == [1, 2, 0]
    assert reply.json["meta"]["warnings"] == [f"without effect here: {field}"]
    assert reply.headers["x-rerank-warnings"] == f"without effect here: {field}"


def test_null_is_an_option_that_is_not_given_whatever_its_name(http: HttpClient) -> None:
    fields = dict.fromkeys(("user", "top_n", "model", "rank_fields", "score_threshold", "logprobs", "ordered"))
    reply = asked(http, **fields)
    assert indexes(reply) == [1, 2, 0]
    assert "x-rerank-warnings" not in reply.headers


@pytest.mark.parametrize(
    ("path", "field", "hint"),
    [
        ("/v2/rerank", "topn", "did you mean top_n?"),
        ("/v2/rerank", "top-n", "did you mean top_n?"),
        ("/v2/rerank", "top_k", "did you mean top_n?"),
        ("/v2/rerank", "document", "did you mean documents?"),
        ("/v2/rerank", "min_score", "GET /openapi.json lists the fields that each path reads"),
        ("/sglang/v1/rerank", "top_N", "did you mean top_n?"),
        ("/voyage/v1/rerank", "top_n", "did you mean top_k?"),
    ],
)
def test_likely_slip_is_refused_with_the_name_that_was_meant(
    http: HttpClient, path: str, field: str, hint: str
) -> None:
    reply = asked(http, path, **{field: 1})
    assert reply.status == 400
    assert reply.json["message"] == f"{field}: this service does not know the field; {hint}"


def test_score_threshold_is_the_least_relevance_where_the_model_gives_one(http: HttpClient) -> None:
    assert indexes(asked(http, score_threshold=0.5)) == [1, 2]
    assert indexes(asked(http, score_threshold=0.5, top_n=1)) == [1]
    assert indexes(asked(http, score_threshold=0.999)) == []


def test_score_threshold_has_no_effect_on_a_model_without_relevance(http: HttpClient) -> None:
    reply = asked(http, model="number", score_threshold=0.8)
    assert indexes(reply) == [1, 2, 0]
    assert reply.json["meta"]["warnings"] == ["score_threshold has no effect, as model number gives no relevance"]
    assert asked(http, model="number", min_relevance=0.8).status == 400


@pytest.mark.parametrize("limit", [{"top_n": 1}, {"score_threshold": 0.9}, {"min_relevance": 0.9, "top_n": 1}])
def test_every_document_is_answered_on_request(http: HttpClient, limit: dict[str, float]) -> None:
    """A program that indexes an array of the size of the results by their index needs all of them."""
    assert len(indexes(asked(http, **limit))) < 3
    assert indexes(asked(http, return_all=True, **limit)) == [1, 2, 0]


@pytest.mark.parametrize(("sent", "ran"), [("rerank-v3.5", "probability"), ("jina-reranker-v2", "number")])
def test_alias_is_told_with_the_model_that_ran(
    http: HttpClient, sent: str, ran: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="rerank.calls"):
        reply = asked(http, model=sent)
    assert f" model={ran} " in caplog.records[-1].getMessage()
    assert reply.json["model"] == reply.headers["x-rerank-model"] == ran
    assert reply.json["meta"]["warnings"] == [f"model {sent!r} is an alias of {ran}, which answers"]
    direct = asked(http, model=ran)
    assert "x-rerank-warnings" not in direct.headers
    assert asked(http).json["model"] == "probability", "no name is the default, not an alias"


def test_more_parts_than_there_may_be_are_fewer_with_a_warning(http: HttpClient) -> None:
    reply = asked(http, max_chunks_per_doc=2**40)
    assert indexes(reply) == [1, 2, 0]
    assert reply.json["meta"]["warnings"] == ["max_chunks_per_doc is 333, the most for 3 documents"]
    native = {"query": "q", "candidates": texts(*NUMBERS), "max_chunks_per_doc": 1000}
    assert http.post("/rerank", native).status == 400


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "a"}] * 1001}, "passages: 1001 candidates"),
        ("/v1/ranking", {"query": "q", "passages": [{"text": "a"}]}, "query: "),
        ("/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "a"}, {"image": "b"}]}, "passages[1].image: "),
        ("/v1/score", {"text_1": "q", "text_2": [""] * 1001}, "text_2: 1001 candidates"),
        (
            "/v1/score",
            {"text_1": ["q"] * 9, "text_2": ["a"] * 8},
            "text_1: it has 9 texts, and text_2 8; send one text",
        ),
        ("/v1/score", {"query": "q", "texts": ["a"]}, "body: no API has a request like this; send text_1 and text_2"),
        (
            "/v1/score",
            {"data_1": ["q", "r"], "data_2": ["a", "b"], "model": "number"},
            "request: it has 2 queries, and",
        ),
        ("/pinecone/rerank", {"query": "q", "documents": [{"id": "a"}]}, "documents[0]: the object has no field text"),
        (
            "/pinecone/rerank",
            {"query": "q", "documents": [{"text": "a"}], "parameters": {"beam": 3}},
            "parameters.beam",
        ),
        ("/rerank", {"query": "q", "documents": [{"text": "a"}], "property": ""}, "documents[0]: "),
        ("/sglang/v1/rerank", {"query": "q", "documents": "abc"}, "documents: "),
    ],
)
def test_wrong_types_and_huge_counts_are_refused_by_name(
    http: HttpClient, path: str, body: dict[str, Any], message: str
) -> None:
    reply = http.post(path, body)
    assert (reply.status, reply.json["error"].startswith(message)) == (400, True), reply.json


def scores(reply: Reply) -> list[float]:
    """The scores of a reply of vLLM's score API, in the order of the request."""
    assert reply.status == 200, reply.body
    assert [row["index"] for row in reply.json["data"]] == [*range(len(reply.json["data"]))]
    return [row["score"] for row in reply.json["data"]]


@pytest.mark.parametrize(
    ("queries", "texts_field"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
def test_score_api_takes_the_names_of_all_versions_of_vllm(http: HttpClient, queries: str, texts_field: str) -> None:
    for path in ("/score", "/v1/score"):
        assert scores(http.post(path, {queries: "q", texts_field: texts(*NUMBERS)})) == pytest.approx(NUMBERS)
        assert scores(http.post(path, {queries: ["q"], texts_field: "relevance 0.5"})) == [0.5]


def test_pairs_are_scored_query_by_query_and_answered_in_their_order(http: HttpClient) -> None:
    pairs = {"queries": ["a", "b", "a", "c"], "documents": texts(0.25, 0.5, 0.75, 1.0)}
    reply = http.post("/v1/score", pairs)
    assert scores(reply) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert reply.json["usage"]["total_tokens"] == 40


@pytest.mark.parametrize(
    ("path", "body", "way_out"),
    [
        ("/v1/ranking", {"passages": [{"text": "a"}] * 2, "truncate": "NONE"}, r"passages\[1\]: .*set truncate to END"),
        ("/voyage/v1/rerank", {"documents": ["a", "b"], "truncation": False}, r"documents\[1\]: .*truncation to true"),
        (
            "/pinecone/rerank",
            {"documents": ["a", "b"], "parameters": {"truncate": "NONE"}},
            r"documents\[1\]: .* to END",
        ),
        ("/rerank", {"texts": ["a", "b"], "truncate": False}, r"texts\[1\]: .*set truncate to true"),
    ],
)
def test_truncated_text_is_an_error_for_those_who_say_so(path: str, body: dict[str, Any], way_out: str) -> None:
    query: Any = {"text": "q"} if path == "/v1/ranking" else "q"
    dialect = chosen(dialects(lambda texts, _: list(texts))[path], body)
    ranking = Ranking((), ScoreKind.RANK, trace_of(truncated_doc_ids=("1",)))
    with pytest.raises(InvalidRequest, match=way_out):
        dialect.translate({"query": query} | body).reply(ranking, [])
    of_query = Ranking((), ScoreKind.RANK, trace_of(query_truncated=True))
    with pytest.raises(InvalidRequest, match=way_out.replace(way_out.partition(":")[0], "^query")):
        dialect.translate({"query": query} | body).reply(of_query, [])
    allowed = {name: value for name, value in body.items() if name in ("passages", "documents", "texts")}
    for truncated in (ranking, of_query):
        assert dialect.translate({"query": query} | allowed).reply(truncated, [])
