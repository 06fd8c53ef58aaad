"""Readers of request files, judgements and queries; errors name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rerank.collections.requests import read_beir_qrels, read_beir_queries, read_requests, read_trec_qrels
from rerank.errors import CollectionError
from rerank.types import CandidateSource


def request_line(doc: object) -> str:
    return json.dumps({"query": {"text": "q?", "qid": 7}, "candidates": [{"docid": 3, "score": 1.5, "doc": doc}]})


@pytest.mark.parametrize(
    ("doc", "text"),
    [
        ({"contents": "c"}, "c"),
        ({"title": "t", "text": "x"}, "t x"),
        ({"title": None, "text": "x"}, "x"),
        ("plain", "plain"),
        ({"segment": "s"}, "s"),
        ({"content": "c"}, "c"),
        ({"contents": "title and text", "text": "text"}, "text"),
    ],
)
def test_text_is_found_under_the_field_names_of_different_indexes(tmp_path: Path, doc: object, text: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(request_line(doc) + "\n\n", encoding="utf-8")
    (request,) = read_requests(path)
    assert (request.query.query_id, request.query.text) == ("7", "q?")
    title = "t" if text.startswith("t x") else ""
    assert request.candidates == (CandidateSource("3", text=text, score=1.5, title=title),)


@pytest.mark.parametrize("line", ["{", "[]", '{"query": {}}', request_line({"nothing": "here"}), request_line(None)])
def test_bad_request_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(request_line("fine") + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(CollectionError, match=r"requests\.jsonl:2: the line does not have the expected form"):
        read_requests(path)


def test_trec_qrels(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("1 0 a 2\n1 Q0 b -1\n", encoding="utf-8")
    assert [(q.query_id, q.doc_id, q.relevance) for q in read_trec_qrels(path)] == [("1", "a", 2), ("1", "b", -1)]


@pytest.mark.parametrize("line", ["1 0 a", "1 0 a two", "1 0 a 2 extra"])
def test_bad_qrels_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("1 0 a 2\n" + line, encoding="utf-8")
    with pytest.raises(CollectionError, match=r"qrels\.txt:2"):
        read_trec_qrels(path)


def test_beir_queries_and_qrels(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n", encoding="utf-8")
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "why"}\n', encoding="utf-8")
    assert [(q.query_id, q.doc_id, q.relevance) for q in read_beir_qrels(tmp_path)] == [("1", "a", 1)]
    assert [(q.query_id, q.text) for q in read_beir_queries(tmp_path)] == [("1", "why")]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"missing\.jsonl cannot be read"):
        read_requests(tmp_path / "missing.jsonl")


def test_unicode_line_separator_does_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"_id": "1", "text": "why\u2028so"}\n', encoding="utf-8")
    assert [query.text for query in read_beir_queries(tmp_path)] == ["why\u2028so"]
