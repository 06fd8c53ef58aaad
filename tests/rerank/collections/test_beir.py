"""Collections in BEIR layout."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from rerank.collections import beir, open_collection
from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel
from rerank.types import Query


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


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ('{"_id": "1"}', "has no text; found _id"),
        ('{"id": "1", "text": "no id"}', "has no _id; found id, text"),
        ('{"_id": "1", "title": 7, "text": "t"}', "has 7 as title; give a string"),
    ],
)
def test_bad_passage_is_named_when_it_is_read(tmp_path: Path, line: str, problem: str) -> None:
    """Among the first lines when the collection is opened, before a model is loaded; later ones when they are read."""
    fine = [f'{{"_id": "{number}", "text": "fine"}}' for number in range(200)]
    with pytest.raises(CollectionError, match=rf"corpus\.jsonl:3 {problem}"):
        open_collection(write(tmp_path, *fine[:2], line))
    collection = open_collection(write(tmp_path, *fine, line))
    with pytest.raises(CollectionError, match=rf"corpus\.jsonl:201 {problem}"):
        list(collection.passages())


def test_other_fields_are_ignored_and_one_without_an_id_is_refused(tmp_path: Path) -> None:
    collection = open_collection(write(tmp_path, '{"_id": 7, "text": "b", "title": "N", "price": 1}'))
    assert [(p.doc_id, p.text) for p in collection.passages()] == [("7", "N b")]
    assert collection.lines_of("7") == [1]
    with pytest.raises(CollectionError, match=r"jsonl:1 has no _id; found sku, text"):
        open_collection(write(tmp_path, '{"sku": 7, "text": "b"}'))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_queries_and_qrels(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    end = "" if compress is bytes else ".gz"
    (tmp_path / "qrels").mkdir()
    (tmp_path / f"qrels/dev.tsv{end}").write_bytes(compress(b"query-id\tcorpus-id\tscore\n1\ta b\t1\n"))
    (tmp_path / f"queries.jsonl{end}").write_bytes(compress(b'{"_id": "1", "text": "why"}\n'))
    assert beir.qrels(tmp_path, "dev") == [Qrel("1", "a b", 1)]
    assert beir.queries(tmp_path) == [Query("why", "1")]
    with pytest.raises(CollectionError, match=r"qrels/test\.tsv cannot be read: No such file"):
        beir.qrels(tmp_path)
