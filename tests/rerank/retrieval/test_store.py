"""The passage store: what went in comes out by doc_id, and bad collections are refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from rerank.errors import CollectionError, NotFound
from rerank.retrieval.store import PassageStore, StoreWriter, is_good_doc_id
from rerank.types import Passage


def write_store(folder: Path, passages: Iterable[Passage], truncated_rows: Iterable[int] = ()) -> PassageStore:
    """A store whose row r has the vector (r, r)."""
    writer = StoreWriter(folder)
    n = len(list(writer.add(passages)))
    vectors = writer.allocate_vectors(n, 2)
    vectors[:] = np.arange(n, dtype=np.float32)[:, None]
    writer.mark_truncated(truncated_rows)
    writer.close()
    return PassageStore(folder)


def test_passages_come_in_the_order_asked_for(tmp_path: Path) -> None:
    store = write_store(tmp_path, [Passage("a", "first"), Passage("b", "second"), Passage("c", "")])
    found = store.passages(["c", "a"])
    assert [(p.doc_id, p.text) for p in found] == [("c", ""), ("a", "first")]
    assert [p.vector.tolist() for p in found if p.vector is not None] == [[2, 2], [0, 0]]


def test_truncated_vectors_are_remembered(tmp_path: Path) -> None:
    store = write_store(tmp_path, [Passage("a", "x"), Passage("b", "y")], truncated_rows=[1])
    assert [p.vector_truncated for p in store.passages(["a", "b"])] == [False, True]


def test_missing_passages_are_counted_and_named(tmp_path: Path) -> None:
    store = write_store(tmp_path, [Passage("a", "x")])
    with pytest.raises(NotFound, match=r"2 of 3 passages are not in the index: 'b', 'c'"):
        store.passages(["a", "b", "c"])


def test_nothing_asked_nothing_found(tmp_path: Path) -> None:
    assert write_store(tmp_path, [Passage("a", "x")]).passages([]) == []


def test_more_ids_than_one_statement_takes(tmp_path: Path) -> None:
    ids = [f"d{number}" for number in range(25_000)]
    store = write_store(tmp_path, [Passage(doc_id, doc_id) for doc_id in ids])
    assert [p.doc_id for p in store.passages(ids[::-1])] == ids[::-1]
    assert store.doc_ids(range(25_000)) == ids


def test_text_survives_quotes_nul_and_other_alphabets(tmp_path: Path) -> None:
    texts = ['it\'s "quoted"', "nul \x00 inside", "Ελληνικά 漢字 🎻", "line\nbreak\ttab"]
    store = write_store(tmp_path, [Passage(str(place), text) for place, text in enumerate(texts)])
    assert [p.text for p in store.passages(["0", "1", "2", "3"])] == texts


def test_vectors_are_memory_mapped(tmp_path: Path) -> None:
    assert isinstance(write_store(tmp_path, [Passage("a", "x")]).vectors, np.memmap)


def test_doc_id_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"passage 2: doc_id 'a' comes twice"):
        list(StoreWriter(tmp_path).add([Passage("a", "x"), Passage("b", "y"), Passage("a", "z")]))


@pytest.mark.parametrize("doc_id", ["", " ", "a b", "a\tb", "a\x00", "a\n"])
def test_doc_id_that_would_break_a_run_file_is_refused(tmp_path: Path, doc_id: str) -> None:
    assert not is_good_doc_id(doc_id)
    with pytest.raises(CollectionError, match="passage 0: doc_id"):
        list(StoreWriter(tmp_path).add([Passage(doc_id, "x")]))


def test_longest_first_covers_every_row_once(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    list(writer.add([Passage(str(n), "x" * (n % 7)) for n in range(50)]))
    chunks = list(writer.longest_first(chunk_size=8))
    lengths = [len(text) for _, texts in chunks for text in texts]
    assert sorted(row for rows, _ in chunks for row in rows) == list(range(50))
    assert lengths == sorted(lengths, reverse=True)
