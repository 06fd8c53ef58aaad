"""Candidates as callers give them: in Python, in files of them, and in request files of RankLLM."""

import json
from pathlib import Path
from typing import Any

import pytest

from rerank.errors import CollectionError, InvalidRequest
from rerank.readers.candidates import CandidateList, passage_of, read_candidates, read_requests
from rerank.types import Passage, Query
from tests.eval.data import request_row, write

#: Elements that are not candidates → how the error goes on.
WRONG: list[tuple[Any, str]] = [
    ({"doc_id": 7.5, "text": "t"}, r"has 7\.5 as doc_id; give a string or an integer"),
    ({"doc_id": "a"}, r"has no text \(or segment, .*\); found doc_id"),
    ({"doc_id": "a", "txt": "t"}, r"has no text \(or segment, .*\); found doc_id, txt"),
    ({"doc_id": "a", "text": "t", "score": "high"}, "has 'high' as score; give a number"),
    ({"doc_id": "a", "text": "t", "score": True}, "has True as score; give a number"),
    ({"doc_id": "a", "text": "t", "title": ["T"]}, r"has \['T'\] as title; give a string"),
    ({"doc_id": "a", "text": "\ud800"}, "has half of a surrogate pair in text"),
    ("\ud800", "has half of a surrogate pair in text"),
    (("a", None), "has None as text; give a string"),
    (("a", "t", 1.0), r"is \('a', 't', 1\.0\), but a candidate is a dict with doc_id"),
    (7, "is 7, but a candidate is a dict with doc_id"),
    (None, "is None, but a candidate is"),
    (b"text", "is b'text', but a candidate is"),
]


def write_rows(folder: Path, *rows: object) -> Path:
    return write(folder / "candidates.jsonl", *rows)


@pytest.mark.parametrize(("candidate", "problem"), WRONG)
def test_error_names_the_place_of_the_candidate(candidate, problem):
    with pytest.raises(InvalidRequest, match=rf"^candidates\[4\]: {problem}"):
        passage_of(candidate, 4)


@pytest.mark.parametrize("name", ["doc_id", "_id", "docid", "id"])
@pytest.mark.parametrize("doc_id", ["my file.pdf", 7])
def test_file_is_read_with_the_names_that_people_use(tmp_path, name, doc_id):
    path = write_rows(tmp_path, {name: doc_id, "text": "t", "title": "T", "score": 2})
    assert read_candidates(path) == [Passage(str(doc_id), "t", score=2.0, title="T")]


def test_further_fields_of_a_file_are_ignored_with_one_warning(tmp_path, caplog):
    rows = [{"id": number, "text": "t", "price": 7.5, "sku": ["a"]} for number in range(3)]
    path = write_rows(tmp_path, *rows, {"id": 3, "text": "t", "price": 1, "colour": None})
    assert read_candidates(path) == [Passage(str(number), "t") for number in range(4)]
    assert [record.message for record in caplog.records] == [f"{path}: fields that are not read: price, sku, colour"]


def test_row_without_an_id_or_a_text_is_refused_with_the_fields_that_it_has(tmp_path):
    with pytest.raises(CollectionError, match=r"jsonl:1 has no text \(or segment, .*\); found id, txt"):
        read_candidates(write_rows(tmp_path, {"id": 7, "txt": "b"}))
    assert read_candidates(write_rows(tmp_path, {"id": 7, "body": "b"})) == [Passage("7", "b")]
    with pytest.raises(CollectionError, match=r"has no doc_id \(or _id, docid, id\); found sku, text"):
        read_candidates(write_rows(tmp_path, {"sku": 7, "text": "t"}))


def test_second_row_with_an_id_is_refused_with_both_lines(tmp_path):
    path = write_rows(tmp_path, {"id": 1, "text": "t"}, "", {"_id": "1", "text": "u"})
    with pytest.raises(CollectionError, match=r"candidates\.jsonl:3 has the doc_id '1' of line 1; give it once"):
        read_candidates(path)


def test_further_fields_of_a_dict_are_ignored_with_one_warning(caplog):
    for place in range(3):
        assert passage_of({"text": "t", "url_of_this_test": "u", 7: "seven"}, place) == Passage(str(place), "t")
    assert caplog.messages == ["candidates: fields that are not read: 7, url_of_this_test"]


# --- request files


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
def test_text_is_found_under_the_field_names_of_different_indexes(tmp_path, doc, text):
    row = {"query": {"text": "q?", "qid": 7}, "candidates": [{"docid": 3, "score": 1.5, "doc": doc}]}
    (request,) = read_requests(write(tmp_path / "requests.jsonl", row, ""))
    assert (request.query.query_id, request.query.text) == ("7", "q?")
    title = "t" if text.startswith("t x") else ""
    assert request.candidates == (Passage("3", text=text, score=1.5, title=title),)


def test_trec_run_is_told_from_a_request_file(tmp_path):
    path = write(tmp_path / "run.trec", "q1 Q0 d1 1 -2.5e+1 bm25")
    message = r"run\.trec:1 is a line of a TREC run, which has no texts; .*--collection"
    with pytest.raises(CollectionError, match=message):
        read_requests(path)


def test_files_that_rankllm_writes_are_read_in_all_forms(tmp_path):
    expected = [
        CandidateList(Query("q?", "7"), (Passage("3", "c", score=9.0), Passage("4", "d", score=8.0))),
        CandidateList(Query("q!", "8"), (Passage("3", "c", score=9.0),)),
    ]
    newer, older = [], []
    for query, candidates in ((request.query, request.candidates) for request in expected):
        newer.append(request_row(int(query.query_id), {row.doc_id: row.text for row in candidates}, query.text))
        rows = [{"content": row.text, "docid": row.doc_id, "score": row.score} for row in candidates]
        hits = [row | {"qid": query.query_id, "rank": rank} for rank, row in enumerate(rows)]
        older.append({"query": query.text, "hits": hits})
    for rows in (newer, older, [newer[0], older[1]]):
        for text in (json.dumps(rows, indent=2), "\n".join(map(json.dumps, rows))):
            path = tmp_path / "requests.json"
            path.write_text(text, encoding="utf-8")
            assert read_requests(path) == expected
