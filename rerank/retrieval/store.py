"""The passage store of an index: text (SQLite) and vector (NumPy) of each passage."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank.errors import CollectionError, NotFound
from rerank.retrieval.index_format import ArrayFile, damaged
from rerank.retrieval.parts import join_parts
from rerank.retrieval.sparse_store import SparseStore
from rerank.types import VALID_DOC_ID, Matrix, Passage, ScoredDoc

_PASSAGES = "passages.sqlite"
_VECTORS = "vectors.npy"
_TRUNCATED = "truncated.npy"
#: SQLite's cache, large enough for the upper levels of the index of doc_ids while it grows.
_WRITE_CACHE_KIB = 256 * 1024
#: Longest text that Anserini reads, in UTF-16 units: Jackson's StreamReadConstraints.getMaxStringLength().
_MAX_UTF16_UNITS = 20_000_000
#: Variables in an SQL statement; SQLite allows 32,766.
_MAX_VARIABLES = 10_000


class DuplicateDocId(CollectionError):
    """Two passages of a collection have the same doc_id."""

    def __init__(self, row: int, doc_id: str) -> None:
        super().__init__(f"passage {row}: doc_id {doc_id!r} occurs twice in the collection")
        self.doc_id = doc_id


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A passage that a retriever found: its 0-based row in the index, and its score."""

    row: int
    score: float


class PassageTexts:
    """Reads the texts that `write_passages` wrote to a folder. Rows are 0-based and in collection order.

    Args:
        folder: folder of the index.

    Raises:
        IndexMismatch: the file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _PASSAGES
        with _report_damage(self._path):
            self._db = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            self._db.execute("PRAGMA mmap_size = 0")  # a file that is cut while it is mapped ends the process (SIGBUS)
            ((last_row,),) = self._db.execute("SELECT max(row) FROM passages")
        self._rows = 0 if last_row is None else int(last_row) + 1

    def __len__(self) -> int:
        return self._rows

    def texts(self, doc_ids: Sequence[str]) -> dict[str, str]:
        """doc_id → text; ids that are not in the index are left out."""
        return dict(self._select("SELECT doc_id, text FROM passages WHERE doc_id IN ({})", doc_ids))

    def texts_from(self, first: int, stop: int) -> Iterator[str]:
        """The texts of the rows from `first` to before `stop`, which are read one by one."""
        sql = "SELECT text FROM passages WHERE row >= ? AND row < ? ORDER BY row"
        with _report_damage(self._path):
            yield from (text for (text,) in self._db.execute(sql, (first, stop)))

    def scored_docs(self, hits: Sequence[ScoredRow]) -> list[ScoredDoc]:
        """The results of a retriever with doc_ids instead of rows."""
        rows = [hit.row for hit in hits]
        doc_id_of = dict(self._select("SELECT row, doc_id FROM passages WHERE row IN ({})", rows))
        self._check_found(rows, doc_id_of)
        return [ScoredDoc(doc_id_of[hit.row], hit.score) for hit in hits]

    def _select(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(values), _MAX_VARIABLES):
            chunk = values[start : start + _MAX_VARIABLES]
            with _report_damage(self._path):
                yield from self._db.execute(sql.format(",".join("?" * len(chunk))), chunk)

    def _check_found(self, rows: Sequence[int], found: Container[int]) -> None:
        """Raises: IndexMismatch if one of the rows was not found, because a complete index has all of them."""
        if missing := [row for row in rows if row not in found]:
            raise damaged(self._path, f"it has no row {missing[0]}")


class PassageStore(PassageTexts):
    """Reads the passages of a complete index: their texts, their vectors and, on request, their sparse vectors.

    Args:
        folder: folder of the index.
        shape: number and width of the vectors by the manifest; None if it is not known.
        sparse: the store of the sparse vectors; None for passages without sparse vectors.

    Raises:
        IndexMismatch: a file is missing or damaged.
    """

    def __init__(self, folder: Path, shape: tuple[int, int] | None = None, sparse: SparseStore | None = None) -> None:
        super().__init__(folder)
        self._sparse = sparse
        #: The unit vector of each row.
        self.vectors = VectorFile(folder / _VECTORS)
        #: (N,): whether the vector of a row covers only the beginning of its text.
        self.truncated: npt.NDArray[np.bool_] = ArrayFile(folder / _TRUNCATED, np.bool_, dimensions=1).read()
        if shape is not None and self.vectors.shape != shape:
            raise damaged(folder / _VECTORS, f"it has {self.vectors.shape} numbers instead of {shape}")
        if len(self) != len(self.vectors):
            raise damaged(self._path, f"it has {len(self)} rows instead of {len(self.vectors)}")

    def passages(self, doc_ids: Sequence[str]) -> list[Passage]:
        """The passages with these ids, with text and vector, in the given order.

        Raises:
            NotFound: the index lacks some of the ids; the message names the first five.
        """
        sql = "SELECT row, doc_id, text FROM passages WHERE doc_id IN ({})"
        found = {passage.doc_id: passage for _, passage in self._passages(sql, doc_ids)}
        if missing := [doc_id for doc_id in doc_ids if doc_id not in found]:
            names = ", ".join(map(repr, missing[:5]))
            raise NotFound(
                f"{len(missing)} of {len(doc_ids)} passages are not in the index: {names}; send their text instead",
                {"missing": str(len(missing))},
            )
        return [found[doc_id] for doc_id in doc_ids]

    def at_rows(self, rows: Sequence[int]) -> list[Passage]:
        """The passages of these rows, with text and vector, in the given order. Raises: IndexMismatch."""
        sql = "SELECT row, doc_id, text FROM passages WHERE row IN ({})"
        found = dict(self._passages(sql, rows))
        self._check_found(rows, found)
        return [found[row] for row in rows]

    def _passages(self, sql: str, values: Sequence[object]) -> Iterator[tuple[int, Passage]]:
        """The rows and passages that a statement selects."""
        found = list(self._select(sql, values))
        vectors = self.vectors.at_rows([row for row, _, _ in found])
        for (row, doc_id, text), vector in zip(found, vectors, strict=True):
            sparse = self._sparse.read(row) if self._sparse else None
            yield row, Passage(doc_id, text, vector=vector, vector_truncated=bool(self.truncated[row]), sparse=sparse)


class VectorFile(ArrayFile):
    """A file of (N, D) float32 vectors."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, np.float32, dimensions=2)

    def at_rows(self, rows: Sequence[int]) -> Matrix:
        """(len(rows), D): the vectors of these rows. Raises: IndexMismatch if the file ends before one of them."""
        vectors = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        for vector, row in zip(vectors, rows, strict=True):
            self.read_into(vector, int(row))
        return vectors


def write_passages(folder: Path, passages: Iterable[Passage]) -> Iterator[int]:
    """Writes the texts of a passage store. After each passage, yields the number of passages so far.

    Raises:
        DuplicateDocId: a doc_id occurs twice.
        CollectionError: a doc_id is blank or contains control characters, or a text is too long for Lucene.
        OSError: the disk is full.
    """
    db = sqlite3.connect(folder / _PASSAGES)
    for setting in ("synchronous = OFF", "journal_mode = OFF", f"cache_size = -{_WRITE_CACHE_KIB}"):
        db.execute(f"PRAGMA {setting}")  # no protection from kills: an incomplete file is written again
    try:
        db.execute("CREATE TABLE passages (row INTEGER PRIMARY KEY, doc_id TEXT NOT NULL UNIQUE, text TEXT NOT NULL)")
        for row, passage in enumerate(passages):
            _insert(db, row, passage)
            yield row + 1
        db.commit()
    except sqlite3.OperationalError as error:  # SQLITE_FULL and the like
        raise OSError(errno.EIO, str(error), str(folder / _PASSAGES)) from error
    finally:
        db.close()


def part_arrays(vectors: Matrix, truncated: Sequence[bool]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a part (see rerank.retrieval.parts) with vectors of some rows, and whether each is truncated."""
    return {"vectors": vectors.astype(np.float32, copy=False), "truncated": np.array(truncated, dtype=np.bool_)}


def join_vectors(parts: Sequence[Path], folder: Path) -> None:
    """Writes the vectors of an index from its parts, in their order. Raises: OSError if the disk is full."""
    for name, file in (("vectors", _VECTORS), ("truncated", _TRUNCATED)):
        join_parts(parts, name, folder / file)


def _insert(db: sqlite3.Connection, row: int, passage: Passage) -> None:
    if not VALID_DOC_ID.fullmatch(passage.doc_id):
        raise CollectionError(
            f"passage {row}: doc_id {passage.doc_id!r} is blank or contains tabs, line ends or other control characters"
        )
    if (length := _utf16_units(passage.text)) > _MAX_UTF16_UNITS:
        raise CollectionError(
            f"passage {row}: the text of doc_id {passage.doc_id!r} has {length:,} characters, as UTF-16 counts them, "
            f"and Lucene takes at most {_MAX_UTF16_UNITS:,}; divide it into passages"
        )
    try:
        db.execute("INSERT INTO passages (row, doc_id, text) VALUES (?, ?, ?)", (row, passage.doc_id, passage.text))
    except sqlite3.IntegrityError as error:
        raise DuplicateDocId(row, passage.doc_id) from error


def _utf16_units(text: str) -> int:
    """The length of a text in Java, where characters beyond U+FFFF count twice; not exact for a short text."""
    return len(text) if 2 * len(text) <= _MAX_UTF16_UNITS else len(text.encode("utf-16-le")) // 2


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    """Turns SQLite's exceptions for a damaged file into IndexMismatch, without passages' texts that they may quote."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # this is a bug
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error).partition(" column")[0]) from error
