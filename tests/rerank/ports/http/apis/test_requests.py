"""The fields that all APIs share: accepted without effect, refused by name, or followed as far as possible."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from rerank.errors import InvalidRequest
from rerank.ports.http.apis.table import rerank_apis
from rerank.types import Ranking, ScoreKind
from tests.fakes import NumberRanker
from tests.http_client import HttpClient, Reply, texts
from tests.serving import HTTP, http_service
from tests.traces import trace_of

NUMBERS = (0.25, 0.875, 0.5)
NO_TEXT = "documents[0]: the object has no field text"


@pytest.fixture(scope="module")
def http() -> Iterator[HttpClient]:
    """A service with "probability", whose scores are a relevance, and "number", which gives none."""
    ranker = NumberRanker(score_kind=ScoreKind.POINTWISE_PROBABILITY, relevance="score")
    settings = HTTP | {"model_aliases": {"rerank-v3.5": "probability", "*": "number"}}
    with http_service({"probability": ranker, "number": NumberRanker()}, http=settings) as served:
        yield served.http


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
def test_field_that_cannot_change_the_order_is_accepted_and_told(http, field, value):
    reply = asked(http, **{field: value})
    assert indexes(reply) == [1, 2, 0]
    assert reply.json["meta"]["warnings"] == [f"without effect here: {field}"]
    assert reply.headers["x-rerank-warnings"] == f"without effect here: {field}"


def test_further_field_of_a_candidate_is_told(http):
    candidates = [{"text": "0.25", "titel": "b"}, {"text": "0.5", "цена": 2}]
    reply = http.post("/rerank", {"query": "q", "candidates": candidates, "model": "number"})
    assert reply.status == 200, reply.body
    assert reply.headers["x-rerank-warnings"] == "without effect here: titel, \\u0446\\u0435\\u043d\\u0430"


def test_null_is_an_option_that_is_not_given_whatever_its_name(http):
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
        ("/pinecone/rerank", "top_N", "did you mean top_n?"),
        ("/voyage/v1/rerank", "top_n", "did you mean top_k?"),
    ],
)
def test_likely_slip_is_refused_with_the_name_that_was_meant(http, path, field, hint):
    reply = asked(http, path, **{field: 1})
    assert reply.status == 400
    assert reply.json["message"] == f"{field}: this service does not know the field; {hint}"


def test_score_threshold_is_the_least_relevance_where_the_model_gives_one(http):
    assert indexes(asked(http, score_threshold=0.5)) == [1, 2]
    assert indexes(asked(http, score_threshold=0.5, top_n=1)) == [1]
    assert indexes(asked(http, score_threshold=0.999)) == []


def test_score_threshold_has_no_effect_on_a_model_without_relevance(http):
    reply = asked(http, model="number", score_threshold=0.8)
    assert indexes(reply) == [1, 2, 0]
    assert reply.json["meta"]["warnings"] == ["score_threshold has no effect, as model number gives no relevance"]
    assert asked(http, model="number", min_relevance=0.8).status == 400


@pytest.mark.parametrize("limit", [{"top_n": 1}, {"score_threshold": 0.9}, {"min_relevance": 0.9, "top_n": 1}])
def test_every_document_is_answered_on_request(http, limit):
    """A program that indexes an array of the size of the results by their index needs all of them."""
    assert len(indexes(asked(http, **limit))) < 3
    assert indexes(asked(http, return_all=True, **limit)) == [1, 2, 0]


@pytest.mark.parametrize(("sent", "ran"), [("rerank-v3.5", "probability"), ("jina-reranker-v2", "number")])
def test_alias_is_told_with_the_model_that_ran(http, sent, ran, caplog):
    with caplog.at_level("INFO", logger="rerank.calls"):
        reply = asked(http, model=sent)
    assert f" model={ran} " in caplog.records[-1].getMessage()
    assert reply.json["model"] == reply.headers["x-rerank-model"] == ran
    assert reply.json["meta"]["warnings"] == [f"model {sent!r} is an alias of {ran}, which answers"]
    direct = asked(http, model=ran)
    assert "x-rerank-warnings" not in direct.headers
    assert asked(http).json["model"] == "probability", "no name is the default, not an alias"


def test_more_parts_than_there_may_be_are_fewer_with_a_warning(http):
    reply = asked(http, max_chunks_per_doc=2**40)
    assert indexes(reply) == [1, 2, 0]
    assert reply.json["meta"]["warnings"] == ["max_chunks_per_doc is 333, the most for 3 documents"]
    native = {"query": "q", "candidates": texts(*NUMBERS), "max_chunks_per_doc": 1000}
    assert http.post("/rerank", native).status == 400


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "a"}] * 1001}, "passages: 1001 candidates"),
        ("/v1/ranking", {"query": {"txt": "q"}, "passages": [{"text": "a"}]}, "query: "),
        ("/v1/ranking", {"query": {"text": "q"}, "passages": [{"text": "a"}, {"image": "b"}]}, "passages[1]: the obj"),
        ("/v1/score", {"text_1": "q", "text_2": [""] * 1001}, "text_2: 1001 candidates"),
        ("/v1/score", {"text_1": ["q", "r"], "text_2": ["a"] * 2}, "text_1: a list of different texts; a request"),
        ("/score", {"text_1": ["q"] * 8, "text_2": ["a"] * 3}, "text_1: 8 texts for 3 of text_2; send one, or 3"),
        ("/score", {"text_1": [], "text_2": ["a"]}, "text_1: expected a text"),
        ("/score", {"text_1": [7], "text_2": ["a"]}, "text_1: expected a text"),
        ("/v1/score", {"queries": "q", "documents": ["a"]}, "queries: this service does not know the field"),
        ("/pinecone/rerank", {"query": "q", "documents": [{"id": "a"}]}, NO_TEXT),
        ("/pinecone/rerank", {"query": "q", "documents": [{"image": "a"}]}, f"{NO_TEXT}; images are not read, so send"),
        ("/rerank", {"query": "q", "documents": [{"a": "b"}], "property": ""}, "documents[0]: "),
        ("/voyage/v1/rerank", {"query": "q", "documents": "abc"}, "documents: "),
    ],
)
def test_wrong_types_and_huge_counts_are_refused_by_name(http, path, body, message):
    reply = http.post(path, body)
    assert (reply.status, reply.json["error"].startswith(message)) == (400, True), reply.json


def test_vllm_reads_a_score_for_each_text_in_the_order_of_the_request(http):
    rows = http.post("/v1/score", {"text_1": "q", "text_2": texts(*NUMBERS)}).json["data"]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert [row["score"] for row in rows] == pytest.approx(NUMBERS)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_vllm_takes_a_text_or_a_list_on_either_side(http, path):
    several = texts(*NUMBERS)
    bodies = [{"text_1": query, "text_2": several} for query in ("q", ["q"], ["q"] * 3)]
    assert len({http.post(path, body).body for body in bodies}) == 1
    for query in ("q", ["q"]):
        one, listed = (http.post(path, {"text_1": query, "text_2": given}).json for given in (several[0], several[:1]))
        assert one == listed
        assert len(one["data"]) == 1


def test_logit_of_nim_is_the_log_odds_of_the_score(http):
    passages = [{"text": text} for text in texts(1.0, 0.75, 0.0)]
    rows = http.post("/v1/ranking", {"query": {"text": "q"}, "passages": passages}).json["rankings"]
    assert [1 / (1 + math.exp(-row["logit"])) for row in rows] == pytest.approx([1.0, 0.75, 0.0])


@pytest.mark.parametrize(("asked_for", "is_shown"), [(None, True), (True, True), (False, False)])
def test_document_is_returned_as_it_was_sent(http, asked_for, is_shown):
    documents = ["0.5", {"text": "1", "url": "a"}]
    body = {"query": "q", "documents": documents, "return_documents": asked_for}
    rows = http.post("/pinecone/rerank", body).json["data"]
    assert [row.get("document") for row in rows] == (documents[::-1] if is_shown else [None, None])


def test_truncated_text_is_an_error_for_clients_of_tei_who_say_so():
    body = {"query": "q", "texts": ["a", "b"]}
    parse = rerank_apis(lambda texts, _: list(texts))["/rerank"]["texts"].parse
    of_text = Ranking((), ScoreKind.RANK, trace_of(truncated_doc_ids=("1",)))
    of_query = Ranking((), ScoreKind.RANK, trace_of(query_truncated=True))
    for ranking, field in ((of_text, r"texts\[1\]"), (of_query, "query")):
        with pytest.raises(InvalidRequest, match=f"^{field}: .*set truncate to true"):
            parse(body | {"truncate": False}).render(ranking, [])
        assert parse(body).render(ranking, []) == b"[]"
