"""The comparison of parts with beginnings: documents hold their passage once, and the table has a row per number."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer import Typer
from typer.testing import CliRunner

from rerank.readers.requests import Request
from rerank.types import CandidateSource, Query
from scripts.reproduce.long_documents import long_documents, main


def requests_of(lists: dict[str, list[str]]) -> list[Request]:
    return [
        Request(Query(f"query {name}", name), tuple(CandidateSource(text, text) for text in texts))
        for name, texts in lists.items()
    ]


def test_document_is_its_passage_among_those_of_other_requests() -> None:
    lists = {"a": ["a1", "a2", "a3"], "b": ["b1", "b2"], "c": ["c1"]}
    first, *others = found = long_documents(requests_of(lists), 4, 2, 0, seed=1)
    assert (
        found == long_documents(requests_of(lists), 4, 2, 0, seed=1) != long_documents(requests_of(lists), 4, 2, 0, 2)
    )
    assert [candidate.doc_id for candidate in first.candidates] == ["a1", "a2"]
    for request in (first, *others):
        own = set(lists[request.query.query_id])
        for candidate in request.candidates:
            words = (candidate.text or "").split()
            assert len(words) == 4
            assert [word for word in words if word in own] == [candidate.doc_id]


def test_table_has_a_row_for_each_number_of_chunks(tmp_path: Path) -> None:
    rows = [
        {"query": {"qid": name, "text": "q"}, "candidates": [{"docid": name + n, "score": 1, "doc": n} for n in "xyz"]}
        for name in "ab"
    ]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qrels.txt").write_text("a 0 ax 1\nb 0 bz 2\n")
    app = Typer()
    app.command()(main)
    files = ["--requests", str(tmp_path / "requests.jsonl"), "--qrels", str(tmp_path / "qrels.txt")]
    result = CliRunner().invoke(app, [*files, "--model", "identity", "--chunks", "0,3", "--passages", "2"])
    table = re.findall(r"^\| (\d+) \| ([01]\.\d{4}) \|", result.output, re.MULTILINE)
    assert table == [("0", "0.7500"), ("3", "0.7500")], result.output
