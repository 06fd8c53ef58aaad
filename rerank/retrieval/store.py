"""The passage store of an index: text (SQLite) and vector (NumPy) of each passage, memory-mapped."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from rerank.errors import CollectionError, NotFound
from rerank.retrieval.integrity import damaged
from rerank.types import Matrix, Passage, is_valid_doc_id

_PASSAGES = "passages.sqlite"
_VECTORS = "vectors.npy"
_MMAP_BYTES = 1 << 40  # larger than any file, so that SQLite maps all of it
_MAX_VARIABLES = 10_000  # per SQL statement; SQLite's own limit is 32,766


class DuplicateDocId(CollectionError):
    """Two passages of a collection have the same doc_id."""

    def __init__(self, row: int, doc_id: str) -> None:
        super().__init__(f"passage {row}: doc_id {doc_id!r} occurs twice in the collection")
        self.doc_id = doc_id


class PassageStore:
    """Reads the passages of a folder that `StoreWriter` wrote. Rows are 0-based and in collection order.

    Args:
        folder: of the index.
        shape: number and width of the vectors, by the manifest; None does not check them.

    Raises:
        IndexMismatch: a file is missing or damaged.
    """

    def __init__(self, folder: Path, shape: tuple[int, int] | None = None) -> None:
        uri = f"{(folder / _PASSAGES).absolute().as_uri()}?mode=ro&immutable=1"
        try:
            self._db = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self._db.execute(f"PRAGMA mmap_size = {_MMAP_BYTES}")
            ((last_row,),) = self._db.execute("SELECT max(row) FROM passages")
        except sqlite3.DatabaseError as error:
            raise damaged(folder / _PASSAGES, error) from error
        #: (N, D) float32, memory-mapped: the unit vector of each row.
        self.vectors: Matrix = _open_vectors(folder / _VECTORS)
        if shape is not None and self.vectors.shape != shape:
            raise damaged(folder / _VECTORS, f"it has {self.vectors.shape} numbers instead of {shape}")
        if last_row != len(self) - 1:
            raise damaged(folder / _PASSAGES, f"its last row is {last_row} instead of {len(self) - 1}")

    def __len__(self) -> int:
        return len(self.vectors)

    def passages(self, doc_ids: Sequence[str]) -> list[Passage]:
        """The passages with these ids, with text and vector, in the given order.

        Raises:
            NotFound: the index lacks some of them; the message names the first five.
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

    def texts(self, doc_ids: Sequence[str]) -> dict[str, str]:
        """Texts by doc_id; leaves out those that are not in the index."""
        return dict(self._select("SELECT doc_id, text FROM passages WHERE doc_id IN ({})", doc_ids))

    def doc_ids(self, rows: Sequence[int]) -> list[str]:
        """The doc_ids of the passages in these rows."""
        doc_id_of = dict(self._select("SELECT row, doc_id FROM passages WHERE row IN ({})", sorted(set(rows))))
        return [doc_id_of[row] for row in rows]

    def _select(self, sql: str, values: Sequence[object]) -> Iterator[tuple]:  # type: ignore[type-arg]
        for start in range(0, len(values), _MAX_VARIABLES):
            chunk = values[start : start + _MAX_VARIABLES]
            yield from self._db.execute(sql.format(",".join("?" * len(chunk))), chunk)


def _open_vectors(path: Path) -> Matrix:
    try:
        vectors: Matrix = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, error) from error
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise damaged(path, f"it has {vectors.ndim} dimensions of {vectors.dtype} instead of 2 of float32")
    return vectors


class StoreWriter:
    """Writes a passage store: first `add` all passages, then allocate and fill their vectors, then `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._db = sqlite3.connect(folder / _PASSAGES)
        self._db.execute(
            "PRAGMA synchronous = OFF"
        )  # a crash loses nothing, because the folder gets its name when it is complete
        self._db.execute(
            "CREATE TABLE passages (row INTEGER PRIMARY KEY, doc_id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
            "truncated INTEGER NOT NULL DEFAULT 0)"
        )

    def add(self, passages: Iterable[Passage]) -> Iterator[Passage]:
        """Stores each passage and yields it.

        Raises:
            DuplicateDocId: a doc_id occurs twice.
            CollectionError: a doc_id is empty, or contains white space or control characters.
        """
        for row, passage in enumerate(passages):
            if not is_valid_doc_id(passage.doc_id):
                raise CollectionError(
                    f"passage {row}: doc_id {passage.doc_id!r} is empty or contains white space or control characters"
                )
            try:
                self._db.execute(
                    "INSERT INTO passages (row, doc_id, text) VALUES (?, ?, ?)", (row, passage.doc_id, passage.text)
                )
            except sqlite3.IntegrityError as error:
                raise DuplicateDocId(row, passage.doc_id) from error
            yield passage
        self._db.commit()

    def longest_first(self, chunk_size: int) -> Iterator[tuple[list[int], list[str]]]:
        """Chunks of (rows, texts), longest text first, so that batches of the encoder need little padding."""
        cursor = self._db.execute("SELECT row, text FROM passages ORDER BY length(text) DESC, row")
        while chunk := cursor.fetchmany(chunk_size):
            yield [row for row, _ in chunk], [text for _, text in chunk]

    def allocate_vectors(self, n: int, dimension: int) -> Matrix:
        """An (n, dimension) float32 array on disk, for the caller to fill."""
        return np.lib.format.open_memmap(self._folder / _VECTORS, mode="w+", dtype=np.float32, shape=(n, dimension))

    def mark_truncated(self, rows: Iterable[int]) -> None:
        """Marks the rows of which the vector covers only the beginning of the text."""
        self._db.executemany("UPDATE passages SET truncated = 1 WHERE row = ?", ((row,) for row in rows))

    def close(self) -> None:
        """Completes the store."""
        self._db.commit()
        self._db.close()
