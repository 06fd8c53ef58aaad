"""doc_id → passage text and its stored vector, both on disk and memory-mapped."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from rerank.errors import CollectionError, NotFound
from rerank.types import Matrix, Passage

_PASSAGES = "passages.sqlite"
_VECTORS = "vectors.npy"
_MMAP_BYTES = 1 << 40  # SQLite maps the whole file
_MAX_VARIABLES = 10_000  # of one SQL statement; SQLite's own bound is 32,766

#: TREC files separate their columns by white space.
_BAD_DOC_ID = re.compile(r"[\s\x00-\x1f\x7f]")


def is_good_doc_id(doc_id: str) -> bool:
    """Not empty, no white space, no control characters."""
    return bool(doc_id) and not _BAD_DOC_ID.search(doc_id)


class PassageStore:
    """Reads a folder that `StoreWriter` wrote. Rows number the passages from 0 in collection order."""

    def __init__(self, folder: Path) -> None:
        uri = f"{(folder / _PASSAGES).absolute().as_uri()}?mode=ro&immutable=1"
        self._db = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._db.execute(f"PRAGMA mmap_size = {_MMAP_BYTES}")
        #: (N, D) float32, memory-mapped; row by row the passages' unit vectors.
        self.vectors: Matrix = np.load(folder / _VECTORS, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.vectors)

    def passages(self, doc_ids: Sequence[str]) -> list[Passage]:
        """Text and vector of each, in the given order.

        Raises:
            NotFound: the index holds no such doc_id; the message names the first few.
        """
        found: dict[str, Passage] = {}
        sql = "SELECT row, doc_id, text, truncated FROM passages WHERE doc_id IN ({})"
        for row, doc_id, text, truncated in self._select(sql, doc_ids):
            found[doc_id] = Passage(doc_id, text, np.array(self.vectors[row]), bool(truncated))
        if missing := [doc_id for doc_id in doc_ids if doc_id not in found]:
            names = ", ".join(map(repr, missing[:5]))
            raise NotFound(
                f"{len(missing)} of {len(doc_ids)} passages are not in the index: {names}; send their text instead",
                {"missing": str(len(missing))},
            )
        return [found[doc_id] for doc_id in doc_ids]

    def doc_ids(self, rows: Sequence[int]) -> list[str]:
        """The ids of the passages in these rows."""
        doc_id_of = dict(self._select("SELECT row, doc_id FROM passages WHERE row IN ({})", sorted(set(rows))))
        return [doc_id_of[row] for row in rows]

    def _select(self, sql: str, values: Sequence[object]) -> Iterator[tuple]:  # type: ignore[type-arg]
        for start in range(0, len(values), _MAX_VARIABLES):
            chunk = values[start : start + _MAX_VARIABLES]
            yield from self._db.execute(sql.format(",".join("?" * len(chunk))), chunk)


class StoreWriter:
    """Writes the passages first, then their vectors, longest text first, so that batches need little padding."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._db = sqlite3.connect(folder / _PASSAGES)
        self._db.execute("PRAGMA synchronous = OFF")  # the folder gets its name only when all is written
        self._db.execute(
            "CREATE TABLE passages (row INTEGER PRIMARY KEY, doc_id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
            "truncated INTEGER NOT NULL DEFAULT 0)"
        )

    def add(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        """Stores each passage and hands it on.

        Raises:
            CollectionError: a doc_id comes twice, is empty, or holds white space.
        """
        for row, passage in enumerate(passages):
            if not is_good_doc_id(passage.doc_id):
                raise CollectionError(f"passage {row}: doc_id {passage.doc_id!r} is empty or holds white space")
            try:
                self._db.execute(
                    "INSERT INTO passages (row, doc_id, text) VALUES (?, ?, ?)", (row, passage.doc_id, passage.text)
                )
            except sqlite3.IntegrityError as error:
                raise CollectionError(
                    f"passage {row}: doc_id {passage.doc_id!r} comes twice in the collection"
                ) from error
            yield passage
        self._db.commit()

    def longest_first(self, chunk_size: int) -> Iterator[tuple[list[int], list[str]]]:
        """Chunks of (rows, texts) by falling length of the text."""
        cursor = self._db.execute("SELECT row, text FROM passages ORDER BY length(text) DESC, row")
        while chunk := cursor.fetchmany(chunk_size):
            yield [row for row, _ in chunk], [text for _, text in chunk]

    def allocate_vectors(self, n: int, dimension: int) -> Matrix:
        """An (n, dimension) float32 array on disk, to be filled."""
        return np.lib.format.open_memmap(self._folder / _VECTORS, mode="w+", dtype=np.float32, shape=(n, dimension))

    def mark_truncated(self, rows: Iterable[int]) -> None:
        """Remembers that the vectors of these rows stand for the beginning of their text only."""
        self._db.executemany("UPDATE passages SET truncated = 1 WHERE row = ?", ((row,) for row in rows))

    def close(self) -> None:
        self._db.commit()
        self._db.close()
