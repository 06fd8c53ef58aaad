"""Request files of RankLLM; errors name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rerank.errors import CollectionError
from rerank.readers.requests import CandidateList, read_requests
from rerank.types import Passage, Query


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
    assert request.candidates == (Passage("3", text=text, score=1.5, title=title),)


def test_trec_run_is_told_from_a_request_file(tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    path.write_text("q1 Q0 d1 1 -2.5e+1 bm25\n", encoding="utf-8")
    with pytest.raises(
        CollectionError, match=r"run\.trec:1 is a line of a TREC run, which has no texts; .*--collection"
    ):
        read_requests(path)


def test_files_that_rankllm_writes_are_read_in_all_forms(tmp_path: Path) -> None:
    expected = [
        CandidateList(Query("q?", "7"), (Passage("3", "c", score=1.5), Passage("4", "d", score=1.0))),
        CandidateList(Query("q!", "8"), (Passage("3", "c", score=2.0),)),
    ]
    newer = [
        {
            "query": {"text": request.query.text, "qid": int(request.query.query_id)},
            "candidates": [
                {"docid": row.doc_id, "score": row.score, "doc": {"contents": row.text}} for row in request.candidates
            ],
        }
        for request in expected
    ]
    older = [
        {
            "query": request.query.text,
            "hits": [
                {"content": row.text, "qid": request.query.query_id, "docid": row.doc_id, "rank": n, "score": row.score}
                for n, row in enumerate(request.candidates)
            ],
        }
        for request in expected
    ]
    for rows in (newer, older, [newer[0], older[1]]):
        for text in (json.dumps(rows, indent=2), "\n".join(map(json.dumps, rows))):
            path = tmp_path / "requests.json"
            path.write_text(text, encoding="utf-8")
            assert read_requests(path) == expected
