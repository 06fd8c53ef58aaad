"""Collections in BEIR layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.collections import open_collection
from rerank.errors import CollectionError


def write(folder: Path, *lines: str) -> str:
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return str(folder)


def test_title_and_text_are_joined(tmp_path: Path) -> None:
    lines = (
        '{"_id": 1, "title": "T", "text": "x"}',
        "",
        '{"_id": "2", "text": "y"}',
        '{"_id": "3", "title": "", "text": ""}',
    )
    passages = list(open_collection(write(tmp_path, *lines)).passages())
    assert [(p.doc_id, p.text) for p in passages] == [("1", "T x"), ("2", "y"), ("3", "")]


def test_collection_has_the_name_of_the_folder_and_can_be_read_twice(beir_folder: Path) -> None:
    collection = open_collection(str(beir_folder))
    assert collection.name == "twelve"
    assert list(collection.passages()) == list(collection.passages())


@pytest.mark.parametrize("line", ["{", "[]", '"text"', '{"_id": "1"}', '{"text": "no id"}', "7"])
def test_bad_line_is_named(tmp_path: Path, line: str) -> None:
    collection = open_collection(write(tmp_path, '{"_id": "1", "text": "fine"}', line))
    with pytest.raises(CollectionError, match=r"corpus\.jsonl:2: expected a JSON object with _id and text"):
        list(collection.passages())


def test_folder_without_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="neither 'pydoc' nor a folder with a corpus"):
        open_collection(str(tmp_path))
