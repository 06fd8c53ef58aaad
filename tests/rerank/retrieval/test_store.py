"""The passage store: reading by doc_id, and the refusal of invalid collections."""

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rerank.errors import CollectionError, IndexMismatch, NotFound
from rerank.retrieval import store as stores
from rerank.retrieval.parts import write_part
from rerank.retrieval.store import PassageStore, ScoredRow, VectorFile, join_vectors, part_arrays, write_passages
from rerank.types import Passage


def write_store(folder: Path, passages: Iterable[Passage], truncated_rows: Iterable[int] = ()) -> PassageStore:
    """A store; row r has the vector (r, r)."""
    n = len(list(write_passages(folder, passages)))
    truncated = set(truncated_rows)
    write_part(folder / "part", part_arrays(np.arange(n)[:, None].repeat(2, 1), [row in truncated for row in range(n)]))
    join_vectors([folder / "part"], folder)
    return PassageStore(folder)


def test_passages_have_the_order_of_the_doc_ids_or_of_the_rows(tmp_path):
    store = write_store(tmp_path, [Passage("a", "first"), Passage("b", "second"), Passage("c", "")], truncated_rows=[2])
    for found in (store.passages(["c", "a", "c"]), store.at_rows([2, 0, 2])):
        shown = [(p.doc_id, p.text, p.vector_truncated) for p in found]
        assert shown == [("c", "", True), ("a", "first", False), ("c", "", True)]
        assert [p.vector.tolist() for p in found if p.vector is not None] == [[2, 2], [0, 0], [2, 2]]
    assert store.at_rows([]) == []


def test_error_counts_and_names_missing_passages(tmp_path):
    store = write_store(tmp_path, [Passage("a", "x")])
    with pytest.raises(NotFound, match=r"2 of 3 passages are not in the index: 'b', 'c'"):
        store.passages(["a", "b", "c"])


def test_more_doc_ids_than_one_sql_statement_takes(tmp_path):
    ids = [f"d{number}" for number in range(25_000)]
    store = write_store(tmp_path, [Passage(doc_id, doc_id) for doc_id in ids])
    assert store.passages([]) == []
    assert [p.doc_id for p in store.passages(ids[::-1])] == ids[::-1]
    hits = [ScoredRow(row, 0.0) for row in range(25_000)]
    assert [doc.doc_id for doc in store.scored_docs(hits)] == ids
    assert [p.doc_id for p in store.at_rows(range(24_999, -1, -1))] == ids[::-1]


def test_text_with_quotes_nul_and_unicode_is_stored_unchanged(tmp_path):
    texts = ['it\'s "quoted"', "nul \x00 inside", "Ελληνικά 漢字 🎻", "line\nbreak\ttab"]
    store = write_store(tmp_path, [Passage(str(place), text) for place, text in enumerate(texts)])
    assert [p.text for p in store.passages(["0", "1", "2", "3"])] == texts


@pytest.mark.parametrize("doc_id", ["", " ", "a\tb", "a\x00", "a\n"])
def test_doc_id_that_cannot_stand_in_a_trec_file_is_refused(tmp_path, doc_id):
    with pytest.raises(CollectionError, match="passage 0: doc_id"):
        list(write_passages(tmp_path, [Passage(doc_id, "x")]))


def test_text_that_lucene_cannot_take_is_named_with_its_length(tmp_path, monkeypatch):
    """The error was about the disk, after lines of Java."""
    monkeypatch.setattr(stores, "_MAX_UTF16_UNITS", 6)
    list(write_passages(tmp_path, [Passage("a", "6 char"), Passage("b", "🎻🎻🎻")]))
    (tmp_path / "passages.sqlite").unlink()
    message = "passage 1: the text of doc_id 'b' has 7 characters, as UTF-16 counts them, and Lucene takes at most 6"
    for text in ("seven c", "🎻🎻🎻."):
        with pytest.raises(CollectionError, match=message):
            list(write_passages(tmp_path, [Passage("a", ""), Passage("b", text)]))
        (tmp_path / "passages.sqlite").unlink()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (b"(50, 7)", b"(50, 7("),  # tokenize.TokenError
        (b"False", b"True "),  # rows would be read as columns
        (b"'<f4'", b"'>f4'"),
        (b"'<f4'", b"'|O' "),
        (b"(50, 7)", b"(99, 7)"),
        (b"{'descr'", b"[[[[[[[["),
        (b"\x93NUMPY", b"PK\x03\x04ab"),  # a zip file
        (b"\x93NUMPY\x01\x00v\x00", b"\x93NUMPY\x02\x00\xff\xff"),  # a header of gigabytes
    ],
)
def test_damaged_header_of_vectors_is_named(tmp_path, wrong, right):
    path = tmp_path / "vectors.npy"
    np.save(path, np.zeros((50, 7), dtype=np.float32))
    content = path.read_bytes()
    assert wrong in content
    path.write_bytes(content.replace(wrong, right, 1))
    message = r"vectors\.npy is damaged: .*; copy the index again, or build it again"
    with pytest.raises(IndexMismatch, match=message) as caught:
        VectorFile(path)
    assert "\n" not in str(caught.value)


def test_damaged_rows_are_named_without_their_text(tmp_path):
    text = "a secret " * 400
    write_store(tmp_path, [Passage(f"d{n}", text) for n in range(200)])
    path = tmp_path / "passages.sqlite"
    whole = path.read_bytes()
    not_utf8 = whole.replace(b"secret", b"\xff\xff\xff\xff\xff\xff")
    no_page = bytearray(whole)
    no_page[4096 * 50 : 4096 * 60] = b"\xa5" * 4096 * 10
    for content in (not_utf8, bytes(no_page)):
        path.write_bytes(content)
        store = PassageStore(tmp_path)
        for read in (
            lambda store=store: store.at_rows(range(200)),
            lambda store=store: store.passages([f"d{n}" for n in range(200)]),
            lambda store=store: store.texts([f"d{n}" for n in range(200)]),
            lambda store=store: list(store.texts_from(0, 200)),
        ):
            with pytest.raises(IndexMismatch, match=r"passages\.sqlite is damaged: ") as caught:
                read()
            assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["passages.sqlite", "vectors.npy"])
def test_file_that_is_cut_while_it_is_read_is_damage_and_ends_no_process(tmp_path, name):
    """A mapped file would: SIGBUS."""
    store = write_store(tmp_path, [Passage(str(row), "x" * 100_000) for row in range(100)])
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
    with pytest.raises(IndexMismatch, match=name):
        store.passages(["99"])


def test_row_that_is_missing_is_damage(tmp_path):
    store = write_store(tmp_path, [Passage("a", ""), Passage("b", ""), Passage("c", "")])
    with closing(sqlite3.connect(tmp_path / "passages.sqlite")) as db, db:
        db.execute("DELETE FROM passages WHERE row = 1")
    store = PassageStore(tmp_path)
    for read in (store.at_rows, lambda rows: store.scored_docs([ScoredRow(row, 0.0) for row in rows])):
        with pytest.raises(IndexMismatch, match=r"passages\.sqlite is damaged: it has no row 1; "):
            read([0, 1, 2])
