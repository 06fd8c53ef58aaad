"""The requests, replies and errors of each API, over a real socket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http_client import HttpClient, texts

DOCUMENTS_PATHS = ["/v1/rerank", "/v2/rerank", "/rerank"]
#: Path → the name of the passages in its requests, and the names of the texts in its errors.
FORMS = {
    "/v1/rerank": ("documents", {"message", "detail"}),
    "/v2/rerank": ("documents", {"message", "detail"}),
    "/rerank": ("texts", {"error"}),
}


def documents_request(*numbers: float, **fields: Any) -> dict[str, Any]:
    return {"query": "q", "documents": texts(*numbers), "model": "number", **fields}


def indexes(reply: Any) -> list[int]:
    results = reply if isinstance(reply, list) else reply["results"]
    return [result["index"] for result in results]


@pytest.mark.parametrize("path", DOCUMENTS_PATHS)
def test_documents_come_best_first_with_falling_scores(http: HttpClient, path: str) -> None:
    reply = http.post(path, documents_request(1, 3, 2)).json
    scores = [result["relevance_score"] for result in reply["results"]]
    assert indexes(reply) == [1, 2, 0]
    assert all(0 <= score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3


@pytest.mark.parametrize("path", DOCUMENTS_PATHS)
def test_reply_names_model_and_tokens_for_clients_of_cohere_and_jina(http: HttpClient, path: str) -> None:
    reply = http.post(path, documents_request(1, 3, 2)).json
    assert reply["id"]
    assert (reply["object"], reply["model"]) == ("list", "number")
    assert reply["usage"]["total_tokens"] == reply["meta"]["tokens"]["input_tokens"] == 30
    assert reply["meta"]["api_version"]["version"] == ("2" if path == "/v2/rerank" else "1")


@pytest.mark.parametrize("path", DOCUMENTS_PATHS)
def test_document_is_absent_unless_asked_for(http: HttpClient, path: str) -> None:
    silent = http.post(path, documents_request(1)).json["results"]
    assert "document" not in silent[0]
    given = http.post(path, documents_request(1, return_documents=True)).json["results"]
    assert given[0]["document"] == {"text": "relevance 1"}


@pytest.mark.parametrize("path", DOCUMENTS_PATHS)
def test_null_stands_for_an_absent_option(http: HttpClient, path: str) -> None:
    options = ("top_n", "return_documents", "max_tokens_per_doc", "max_chunks_per_doc", "rank_fields", "priority")
    assert indexes(http.post(path, documents_request(1, 2, **dict.fromkeys(options))).json) == [1, 0]


@pytest.mark.parametrize("path", [*DOCUMENTS_PATHS])
@pytest.mark.parametrize(("top_n", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 0]), (2**40, [1, 2, 0])])
def test_top_n_is_honoured(http: HttpClient, path: str, top_n: int, expected: list[int]) -> None:
    assert indexes(http.post(path, documents_request(1, 3, 2, top_n=top_n)).json) == expected


@pytest.mark.parametrize("path", DOCUMENTS_PATHS)
def test_equal_documents_of_an_unordered_list_have_equal_scores(http: HttpClient, path: str) -> None:
    for documents in (documents_request(1, 3, 3, 2), documents_request(3, 1, 2, 3)):
        ordered, unordered = (http.post(path, documents | {"ordered": each}).json["results"] for each in (True, False))
        assert [len({row["relevance_score"] for row in results}) for results in (ordered, unordered)] == [4, 3]
        assert [documents["documents"][row["index"]] for row in unordered] == texts(3, 3, 2, 1)


def test_equal_texts_of_an_unordered_list_have_equal_scores(http: HttpClient) -> None:
    request = {"query": "q", "texts": texts(1, 3, 3, 2)}
    ordered, unordered = (http.post("/rerank", request | {"ordered": each}).json for each in (True, False))
    assert [len({row["score"] for row in ranks}) for ranks in (ordered, unordered)] == [4, 3]
    assert indexes(unordered) == [1, 2, 3, 0]


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("given", [{}, {"ordered": None}])
def test_documents_and_texts_are_unordered_by_default(http: HttpClient, path: str, given: dict[str, Any]) -> None:
    request = {"query": "q", FORMS[path][0]: texts(3, 1, 3)}
    assert indexes(http.post(path, request | given).json) == [0, 2, 1]
    replies = [http.post(path, request | each).json for each in (given, {"ordered": False})]
    scores = [
        [
            row.get("relevance_score", row.get("score"))
            for row in (reply if isinstance(reply, list) else reply["results"])
        ]
        for reply in replies
    ]
    assert scores[0] == scores[1]
    assert scores[0][0] == scores[0][1]


def test_candidates_of_the_json_form_are_ordered_by_default(http: HttpClient) -> None:
    candidates = [{"doc_id": str(place), "text": text} for place, text in enumerate(texts(1, 3, 3))]
    unordered = http.post("/rerank", {"query": "q", "candidates": candidates, "ordered": False}).json
    assert [row["score"] for row in unordered["results"]] == [3.0, 3.0, 1.0]
    by_default = http.post("/rerank", {"query": "q", "candidates": candidates}).json
    assert len({row["score"] for row in by_default["results"]}) == 3


@pytest.mark.parametrize("path", FORMS)
def test_ordered_must_be_a_boolean(http: HttpClient, path: str) -> None:
    reply = http.post(path, {"query": "q", FORMS[path][0]: ["a"], "ordered": "no"})
    assert reply.status == 400
    assert "ordered" in str(reply.json)


def test_top_n_of_zero_is_all_where_vllm_clients_call_and_else_refused(http: HttpClient) -> None:
    assert indexes(http.post("/rerank", documents_request(1, 3, 2, top_n=0)).json) == [1, 2, 0]
    for path in ("/v1/rerank", "/v2/rerank"):
        assert http.post(path, documents_request(1, top_n=0)).status == 400


def test_objects_are_ranked_by_their_text_and_returned_whole(http: HttpClient) -> None:
    documents = [{"text": "relevance 1", "url": "a"}, {"text": "relevance 2", "url": "b"}]
    reply = http.post("/v1/rerank", {"query": "q", "documents": documents, "return_documents": True}).json
    assert [result["document"] for result in reply["results"]] == documents[::-1]


def test_rank_fields_choose_the_fields_that_are_ranked(http: HttpClient) -> None:
    documents = [{"title": "5", "text": "1"}, {"title": "4", "text": "2"}]
    for fields, expected in ((["text"], [1, 0]), (["title", "text"], [0, 1])):
        request = {"query": "q", "documents": documents, "rank_fields": fields}
        assert indexes(http.post("/v1/rerank", request).json) == expected


@pytest.mark.parametrize("path", DOCUMENTS_PATHS)
def test_title_of_a_document_is_ranked_before_its_text(http: HttpClient, path: str) -> None:
    documents = [{"title": "5", "text": "1", "url": 7}, {"title": None, "text": "4 2"}, {"title": "6", "text": "6 0"}]
    assert indexes(http.post(path, {"query": "q", "documents": documents}).json) == [2, 0, 1]
    cut = {"query": "q", "documents": documents, "max_tokens_per_doc": 1}
    assert indexes(http.post(path, cut).json) == [2, 0, 1]
    wrong = http.post(path, {"query": "q", "documents": [{"title": 5, "text": "1"}]})
    assert (wrong.status, "documents[0].title" in wrong.json["message"]) == (400, True)


def test_title_of_a_native_candidate_is_ranked_before_its_text(http: HttpClient) -> None:
    candidates = [{"doc_id": "my file.pdf", "text": "1"}, {"doc_id": "b", "text": "0", "title": "5"}]
    reply = http.post("/rerank", {"query": "q", "candidates": candidates, "return_passages": True}).json
    assert [(result["doc_id"], result["text"]) for result in reply["results"]] == [("b", "5 0"), ("my file.pdf", "1")]


def test_max_tokens_per_doc_cuts_documents(http: HttpClient) -> None:
    documents = ["one two three four 9", "one two 3"]
    assert indexes(http.post("/v2/rerank", {"query": "q", "documents": documents}).json) == [0, 1]
    cut = http.post("/v2/rerank", {"query": "q", "documents": documents, "max_tokens_per_doc": 4}).json
    assert indexes(cut) == [1, 0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_chunks_per_doc", 10),
        ("priority", 5),
        ("relevant_spans", {"mode": "enabled"}),
        ("truncate_prompt_tokens", 100),
        ("documnets", []),
    ],
)
def test_option_that_cannot_be_honoured_is_refused_by_name(http: HttpClient, field: str, value: object) -> None:
    reply = http.post("/v2/rerank", documents_request(1, **{field: value}))
    assert reply.status == 400
    assert reply.json["message"].startswith(f"{field}: ")


def test_alias_of_a_model_is_ranked_by_that_model(http: HttpClient) -> None:
    reply = http.post("/v1/rerank", documents_request(1, 2) | {"model": "vendor-model"}).json
    assert reply["model"] == "number"


def test_what_was_not_reranked_is_a_warning_and_a_header(http: HttpClient) -> None:
    reply = http.post("/v1/rerank", documents_request(1, 2, ordered=True) | {"model": "identity"})
    assert reply.json["meta"]["warnings"] == ["model identity keeps the first-stage order"]
    assert reply.headers["x-rerank-completeness"] == "none"
    assert reply.headers["x-rerank-model"] == "identity"


def test_tei_reply_is_a_bare_array_with_the_text_on_request(http: HttpClient) -> None:
    silent = http.post("/rerank", {"query": "q", "texts": texts(1, 2)}).json
    assert [set(rank) for rank in silent] == [{"index", "score"}] * 2
    given = http.post("/rerank", {"query": "q", "texts": texts(1, 2), "return_text": True, "truncate": None}).json
    assert [(rank["index"], rank["text"]) for rank in given] == [(1, "relevance 2"), (0, "relevance 1")]


def test_tei_raw_scores_are_those_of_grpc(http: HttpClient) -> None:
    raw = http.post("/rerank", {"query": "q", "texts": texts(1, -2), "raw_scores": True}).json
    assert [rank["score"] for rank in raw] == [1.0, -2.0]


def test_tei_top_n_cuts_the_list(http: HttpClient) -> None:
    assert indexes(http.post("/rerank", {"query": "q", "texts": texts(1, 3, 2), "top_n": 2}).json) == [1, 2]


def test_tei_truncation_on_the_left_is_refused(http: HttpClient) -> None:
    body = {"query": "q", "texts": texts(1), "truncation_direction": "Left"}
    reply = http.post("/rerank", body)
    assert (reply.status, reply.json["error_type"]) == (400, "Validation")
    assert http.post("/rerank", body | {"truncation_direction": "Right"}).status == 200


def test_json_form_of_rerank_has_the_fields_of_the_proto(http: HttpClient) -> None:
    candidates = [{"doc_id": "a", "text": "1"}, {"doc_id": "b", "text": "2", "first_stage_score": 0.5}]
    reply = http.post("/rerank", {"query": "q", "candidates": candidates, "topN": 1}).json
    assert [(result["doc_id"], result["first_stage_score"]) for result in reply["results"]] == [("b", 0.5)]
    assert reply["execution"]["model"] == "number"


def test_json_form_of_search_reads_the_index(http: HttpClient) -> None:
    request = {"query": "flea bites", "first_stage": "FIRST_STAGE_BM25", "return_passages": True}
    reply = http.post("/search", request).json
    assert {result["doc_id"] for result in reply["results"]} == {"flea", "flea-bite"}
    assert reply["first_stage_hits"] == 2
    assert all(result["text"] for result in reply["results"])


@pytest.mark.parametrize("stage", ["bm25", "FIRST_STAGE_BM25", 1])
def test_json_forms_take_the_names_of_the_command_line(http: HttpClient, stage: object) -> None:
    request = {"query": "flea bites", "first_stage": stage, "strategy": {"kind": "top-down", "window_size": 5}}
    reply = http.post("/search", request).json
    assert (reply["first_stage"], reply["execution"]["strategy"]) == ("FIRST_STAGE_BM25", "top-down(5)")
    assert http.post("/search", request | {"strategy": "single"}).json["execution"]["strategy"] == "single(20)"


@pytest.mark.parametrize(
    ("fields", "field", "expected"),
    [
        ({"first_stage": "bm52"}, "first_stage", "did you mean bm25? choices: bm25, dense"),
        ({"strategy": {"kind": "slidng"}}, "strategy.kind", "did you mean sliding? choices: single, sliding"),
        ({"feedback": {"method": "rochio"}}, "feedback.method", "did you mean rocchio?"),
        ({"top_k": 1}, "top_k", "did you mean top_n?"),
    ],
)
def test_json_forms_list_the_names_that_they_take(
    http: HttpClient, fields: dict[str, Any], field: str, expected: str
) -> None:
    reply = http.post("/search", {"query": "q", **fields})
    assert reply.status == 400
    assert expected in reply.json["message"]
    assert [violation["field"] for violation in reply.json["details"][1]["field_violations"]] == [field]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/rerank", {"documents": ["a"]}),
        ("/v2/rerank", {"documents": ["a"]}),
        ("/rerank", {"documents": ["a"]}),
        ("/rerank", {"candidates": [{"doc_id": "a", "text": "a"}]}),
        ("/search", {}),
    ],
)
def test_instruction_is_refused_by_a_model_that_reads_none(http: HttpClient, path: str, fields: dict[str, Any]) -> None:
    reply = http.post(path, {"query": "q", "instruction": "prefer medical texts", **fields})
    assert reply.status == 400
    assert "instruction: the prompt of model number has no place for an instruction" in reply.json["message"]
    assert http.post(path, {"query": "q", "instruction": "", **fields}).status == 200


@pytest.mark.parametrize(
    ("path", "fields"), [("/search", {}), ("/rerank", {"candidates": [{"doc_id": "a", "text": "t"}]})]
)
def test_error_of_a_json_form_is_the_status_of_grpc(http: HttpClient, path: str, fields: dict[str, Any]) -> None:
    reply = http.post(path, {"query": " ", **fields})
    assert (reply.status, reply.json["code"]) == (400, 3)
    violations = reply.json["details"][1]["field_violations"]
    assert [violation["field"] for violation in violations] == ["query"]


@pytest.mark.parametrize("path", FORMS)
def test_error_names_the_field_of_the_dialect(http: HttpClient, path: str) -> None:
    passages, texts_of_error = FORMS[path]
    reply = http.post(path, {"query": "q", passages: ["fine", "x" * 200_001]})
    assert reply.status == 400
    for name in texts_of_error:
        assert reply.json[name].startswith(f"{passages}[1]: 200001 characters exceed the limit")


@pytest.mark.parametrize("path", FORMS)
def test_unknown_model_is_not_found_and_the_models_are_named(http: HttpClient, path: str) -> None:
    passages, texts_of_error = FORMS[path]
    reply = http.post(path, {"query": "q", passages: ["a"], "model": "rerank-v9"})
    assert reply.status == 404
    for name in texts_of_error:
        assert "number, identity" in reply.json[name]


@pytest.mark.parametrize("path", FORMS)
def test_empty_list_of_passages_is_refused(http: HttpClient, path: str) -> None:
    passages, _ = FORMS[path]
    assert http.post(path, {"query": "q", passages: []}).status == 400


@pytest.mark.parametrize("query", ["", " \t", "\u0000"])
@pytest.mark.parametrize("path", FORMS)
def test_empty_query_is_refused(http: HttpClient, path: str, query: str) -> None:
    passages, _ = FORMS[path]
    assert http.post(path, {"query": query, passages: ["a"]}).status == 400


def test_body_without_passages_is_answered_in_a_form_that_all_clients_read(http: HttpClient) -> None:
    reply = http.post("/rerank", {"query": "q"})
    assert reply.status == 400
    assert {"message", "detail", "error", "error_type", "code"} <= reply.json.keys()
    assert "send documents (Cohere, Jina), texts (TEI) or candidates" in reply.json["message"]
