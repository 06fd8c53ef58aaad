"""Candidates as callers give them, in Python and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rerank.errors import CollectionError
from rerank.readers.candidates import candidate_source, read_candidates
from rerank.types import CandidateSource, candidate_list

KNOWN = r"known are doc_id \(or _id, docid, id\), text, title, score"
#: Elements that are no candidates → how the error goes on.
WRONG: list[tuple[Any, str]] = [
    ({"doc_id": 7.5, "text": "t"}, r"has 7\.5 as doc_id; give a string or an integer"),
    ({"doc_id": "a"}, "has no text; found doc_id"),
    ({"text": "t"}, r"has no doc_id \(or _id, docid, id\); found text"),
    ({"doc_id": "a", "txt": "t"}, rf"has the unknown field 'txt'; {KNOWN}"),
    ({"doc_id": "a", "text": "t", "body": "b"}, rf"has the unknown field 'body'; {KNOWN}"),
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
#: Arguments that are no lists, although some of them can be iterated over.
NO_LISTS: list[Any] = ["a text", b"bytes", {"a": "text"}, 7, None]


def write(folder: Path, *rows: object) -> Path:
    path = folder / "candidates.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(("candidate", "problem"), WRONG)
def test_error_names_the_place_of_the_candidate(candidate: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=rf"^candidates\[4\] {problem}"):
        candidate_source(candidate, 4)


@pytest.mark.parametrize("candidates", NO_LISTS)
def test_candidates_must_be_a_list(candidates: Any) -> None:
    with pytest.raises(TypeError, match=r"candidates must be a list, not "):
        candidate_list(candidates)


@pytest.mark.parametrize("name", ["doc_id", "_id", "docid", "id"])
@pytest.mark.parametrize("doc_id", ["my file.pdf", 7])
def test_file_is_read_with_the_names_that_people_use(tmp_path: Path, name: str, doc_id: object) -> None:
    path = write(tmp_path, {name: doc_id, "text": "t", "title": "T", "score": 2})
    assert read_candidates(path) == [CandidateSource(str(doc_id), "t", score=2.0, title="T")]


def test_file_may_be_empty(tmp_path: Path) -> None:
    assert read_candidates(write(tmp_path)) == []


@pytest.mark.parametrize(("row", "problem"), [(row, problem) for row, problem in WRONG if isinstance(row, dict)])
def test_error_of_a_file_names_the_line(tmp_path: Path, row: object, problem: str) -> None:
    with pytest.raises(CollectionError, match=rf"candidates\.jsonl:3 {problem}"):
        read_candidates(write(tmp_path, {"id": 1, "text": "t"}, "", row))


def test_second_row_with_an_id_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": 1, "text": "t"}, "", {"_id": "1", "text": "u"})
    with pytest.raises(CollectionError, match=r"candidates\.jsonl:3 has the doc_id '1' of line 1; give it once"):
        read_candidates(path)
