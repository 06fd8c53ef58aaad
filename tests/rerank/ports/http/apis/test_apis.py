"""The requests, replies and errors of each API, over a real socket."""

from typing import Any

import pytest

from tests.http_client import texts

DOCUMENTS_PATHS = ["/v1/rerank", "/v2/rerank", "/rerank"]
#: Paths, and the name of the passages in their requests.
FORMS = [*((path, "documents") for path in DOCUMENTS_PATHS), ("/rerank", "texts")]
of_each_form = pytest.mark.parametrize(("path", "passages"), FORMS)


def results_of(reply: Any) -> list[dict[str, Any]]:
    """The results of a reply of Cohere, Jina or TEI."""
    return list(reply if isinstance(reply, list) else reply["results"])


def indexes(reply: Any) -> list[int]:
    return [result["index"] for result in results_of(reply)]


def scores(reply: Any) -> list[float]:
    return [result.get("relevance_score", result.get("score")) for result in results_of(reply)]


@of_each_form
def test_passages_come_best_first_up_to_top_n_and_null_is_an_absent_option(http, path, passages):
    for top_n, count in ((None, 3), (0, 3), (1, 1), (2, 2), (3, 3), (2**40, 3)):
        reply = http.post(path, {"query": "q", passages: texts(1, 3, 2), "top_n": top_n, "model": None}).json
        assert indexes(reply) == [1, 2, 0][:count]
        assert "text" not in str(reply)
        assert scores(reply) == sorted(set(scores(reply)), reverse=True)
        assert all(0 <= score <= 1 for score in scores(reply))


@of_each_form
def test_passages_are_unordered_by_default_so_that_equal_ones_have_equal_scores(http, path, passages):
    for sent in (texts(1, 3, 3, 2), texts(3, 1, 2, 3)):
        ordered, *unordered = (
            http.post(path, {"query": "q", passages: sent} | given).json
            for given in ({"ordered": True}, {"ordered": False}, {"ordered": None}, {})
        )
        assert len(set(scores(ordered))) == 4
        for reply in unordered:
            assert [sent[index] for index in indexes(reply)] == texts(3, 3, 2, 1)
            assert scores(reply) == scores(unordered[0])
            assert len(set(scores(reply))) == 3


@of_each_form
def test_refusal_is_in_the_fields_of_the_api_and_names_its_field(http, path, passages):
    refused = [
        ({passages: ["fine", "x" * 200_001]}, 400, f"{passages}[1]: 200001 characters exceed the limit"),
        (
            {"model": "rerank-v9"},
            404,
            "is not one of number, identity; use one of them; over HTTP, the setting http.mo",
        ),
        ({passages: []}, 400, f"{passages}: the list is empty"),
        ({"ordered": "no"}, 400, "ordered"),
        *(({"query": query}, 400, "query: the query is empty") for query in ("", " \t", "\u0000")),
    ]
    texts_of_error = {"error"} if passages == "texts" else {"message", "detail"}
    for fields, status, message in refused:
        reply = http.post(path, {"query": "q", passages: ["a"]} | fields)
        assert reply.status == status
        assert all(message in reply.json[name] for name in texts_of_error), reply.json


def test_candidates_of_the_json_form_are_ordered_by_default_and_ranked_with_their_title(http):
    candidates = [{"doc_id": str(place), "text": text} for place, text in enumerate(texts(1, 3, 3))]
    unordered = http.post("/rerank", {"query": "q", "candidates": candidates, "ordered": False}).json
    assert [row["score"] for row in unordered["results"]] == [3.0, 3.0, 1.0]
    by_default = http.post("/rerank", {"query": "q", "candidates": candidates}).json
    assert len({row["score"] for row in by_default["results"]}) == 3
    titled = [{"doc_id": "a.pdf", "text": "1", "first_stage_score": 0.5}, {"doc_id": "b", "text": "0", "title": "5"}]
    reply = http.post("/rerank", {"query": "q", "candidates": titled, "returnPassages": True}).json
    shown = [(row["doc_id"], row["title"], row["text"]) for row in reply["results"]]
    assert shown == [("b", "5", "0"), ("a.pdf", "", "1")]
    assert [row.get("first_stage_score") for row in reply["results"]] == [None, 0.5]
    assert reply["execution"]["model"] == "number"


@pytest.mark.parametrize("path", DOCUMENTS_PATHS)
def test_reply_names_model_and_tokens_for_clients_of_cohere_and_jina(http, path):
    request = {"query": "q", "documents": texts(1, 3, 2), "model": "number", "return_documents": True}
    reply = http.post(path, request).json
    assert reply["results"][0]["document"] == {"text": "relevance 3"}
    assert reply["id"]
    assert (reply["object"], reply["model"]) == ("list", "number")
    assert reply["usage"]["total_tokens"] == reply["meta"]["tokens"]["input_tokens"] == 30
    assert reply["meta"]["api_version"]["version"] == ("2" if path == "/v2/rerank" else "1")


def test_objects_are_ranked_by_their_text_or_the_chosen_fields_and_returned_whole(http):
    documents = [{"title": "5", "text": "1", "url": "a"}, {"title": "4", "text": "2", "url": "b"}]
    request = {"query": "q", "documents": documents, "model": "vendor-model", "return_documents": True}
    for fields, expected in ((["text"], [1, 0]), (["title", "text"], [0, 1])):
        reply = http.post("/v1/rerank", request | {"rank_fields": fields}).json
        assert indexes(reply) == expected
        assert [result["document"] for result in reply["results"]] == [documents[index] for index in expected]
        assert reply["model"] == "number", "the model that has this alias"


@pytest.mark.parametrize("path", DOCUMENTS_PATHS)
def test_title_of_a_document_is_ranked_before_its_text(http, path):
    documents = [{"title": "5", "text": "1", "url": 7}, {"title": None, "text": "4 2"}, {"title": "6", "text": "6 0"}]
    assert indexes(http.post(path, {"query": "q", "documents": documents}).json) == [2, 0, 1]
    cut = {"query": "q", "documents": documents, "max_tokens_per_doc": 1}
    assert indexes(http.post(path, cut).json) == [2, 0, 1]
    wrong = http.post(path, {"query": "q", "documents": [{"title": 5, "text": "1"}]})
    assert (wrong.status, "documents[0].title" in wrong.json["message"]) == (400, True)


def test_tei_reply_is_a_bare_array_with_text_and_raw_scores_on_request(http):
    request = {"query": "q", "texts": texts(1, 2)}
    assert [set(rank) for rank in http.post("/rerank", request).json] == [{"index", "score"}] * 2
    given = http.post("/rerank", request | {"return_text": True, "raw_scores": True, "truncate": None}).json
    found = [(rank["index"], rank["text"], rank["score"]) for rank in given]
    assert found == [(1, "relevance 2", 2.0), (0, "relevance 1", 1.0)]


def test_tei_truncation_on_the_left_is_refused(http):
    body = {"query": "q", "texts": texts(1), "truncation_direction": "Left"}
    reply = http.post("/rerank", body)
    assert (reply.status, reply.json["error_type"]) == (400, "Validation")
    for direction, status in (("left", 400), ("Right", 200), ("right", 200)):
        assert http.post("/rerank", body | {"truncation_direction": direction}).status == status


@pytest.mark.parametrize(
    ("path", "fields"), [("/search", {}), ("/rerank", {"candidates": [{"doc_id": "a", "text": "t"}]})]
)
def test_error_of_a_json_form_is_the_status_of_grpc(http, path, fields):
    reply = http.post(path, {"query": " ", **fields})
    assert (reply.status, reply.json["code"]) == (400, 3)
    violations = reply.json["details"][1]["field_violations"]
    assert [violation["field"] for violation in violations] == ["query"]


def test_body_without_passages_is_answered_in_a_form_that_all_clients_read(http):
    reply = http.post("/rerank", {"query": "q"})
    assert reply.status == 400
    assert {"message", "detail", "error", "error_type", "code"} <= reply.json.keys()
    assert "documents (Cohere, Jina), texts (TEI) or candidates" in reply.json["message"]
