"""Sparse vectors of the passages of an index, row by row for reranking and term by term for search.

Both are compressed sparse matrices: offsets, ids (terms or rows) and weights. Weights are float16, exact to 0.05 %.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank.retrieval.arrays import open_array, reserve
from rerank.retrieval.integrity import damaged
from rerank.util.files import atomic_file
from rerank.util.sparse_vectors import SparseVector

FOLDER = "sparse"
_TRUNCATED = "truncated.npy"
#: offsets, ids and weights: of the rows by their terms, and of the terms by their rows.
_BY_ROW = ("offsets.npy", "terms.npy", "weights.npy")
_BY_TERM = ("term_offsets.npy", "rows.npy", "row_weights.npy")
_MAX_UINT16_TERMS = 1 << 16


class SparseStore:
    """Reads the sparse vectors that `join_parts` wrote to an index.

    Args:
        index: folder of the index.
        passages: number of its rows.
        vocabulary_size: number of terms of its sparse encoder.

    Raises:
        IndexMismatch: a file is missing or damaged.
    """

    def __init__(self, index: Path, passages: int, vocabulary_size: int) -> None:
        folder = index / FOLDER
        self._vocabulary_size = vocabulary_size
        self.by_row = CompressedRows(folder, _BY_ROW, passages)
        self.by_term = CompressedRows(folder, _BY_TERM, vocabulary_size)
        self._truncated: npt.NDArray[np.bool_] = open_array(folder / _TRUNCATED, np.bool_, dimensions=1)
        if len(self._truncated) != passages:
            raise damaged(folder / _TRUNCATED, f"it has {len(self._truncated)} numbers instead of {passages}")

    def read(self, row: int) -> SparseVector:
        """The vector of a row. Raises: IndexMismatch if a term is not in the vocabulary."""
        terms, weights = self.by_row.read(row)
        if len(terms) and int(terms[-1]) >= self._vocabulary_size:  # they increase
            raise damaged(self.by_row.folder, f"term {terms[-1]} of row {row}, of {self._vocabulary_size}")
        return SparseVector(terms.astype(np.int32), weights.astype(np.float32), bool(self._truncated[row]))


class CompressedRows:
    """A sparse matrix by rows: a file of offsets, one of ids and one of weights. Rows are read, and not memory-mapped.

    Raises:
        IndexMismatch: a file is missing or damaged.
    """

    def __init__(self, folder: Path, names: Sequence[str], rows: int) -> None:
        self.folder = folder
        offsets, *arrays = (folder / name for name in names)
        self._offsets: npt.NDArray[np.int64] = np.array(open_array(offsets, np.int64, dimensions=1))
        if len(self._offsets) != rows + 1 or self._offsets[0] != 0 or (np.diff(self._offsets) < 0).any():
            raise damaged(offsets, f"it does not have the {rows + 1} increasing offsets of {rows} rows")
        self._ids, self._weights = (_NumberFile(path, int(self._offsets[-1])) for path in arrays)

    def read(self, row: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The ids and the weights of a row."""
        first, stop = int(self._offsets[row]), int(self._offsets[row + 1])
        return self._ids.read(first, stop), self._weights.read(first, stop)


class _NumberFile:
    """A file of numbers that is read in parts."""

    def __init__(self, path: Path, numbers: int) -> None:
        array = open_array(path, None, dimensions=1)
        if array.dtype not in (np.uint16, np.uint32, np.float16) or len(array) != numbers:
            raise damaged(path, f"it has {len(array)} numbers of {array.dtype} instead of {numbers}")
        self._path, self._dtype = path, array.dtype
        self._first_byte = path.stat().st_size - array.nbytes
        self._file = path.open("rb")

    def read(self, first: int, stop: int) -> npt.NDArray[Any]:
        size, place = (stop - first) * self._dtype.itemsize, self._first_byte + first * self._dtype.itemsize
        content = b""
        while len(content) < size:  # the system returns at most 2 GB at a time
            if not (part := os.pread(self._file.fileno(), size - len(content), place + len(content))):
                raise damaged(self._path, "it ends too early")
            content = content + part if content else part
        return np.frombuffer(content, self._dtype)


def write_part(path: Path, vectors: Sequence[SparseVector]) -> None:
    """Writes the vectors of some rows to a file of their own."""
    counts = np.array([len(vector.terms) for vector in vectors], dtype=np.int64)
    terms = np.concatenate([np.empty(0, np.int32), *(vector.terms for vector in vectors)])
    weights = np.concatenate([np.empty(0, np.float32), *(vector.weights for vector in vectors)])
    truncated = np.array([vector.is_truncated for vector in vectors], dtype=np.bool_)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, counts=counts, terms=terms, weights=weights.astype(np.float16), truncated=truncated)


def join_parts(parts: Sequence[Path], index: Path, vocabulary_size: int) -> None:
    """Writes the sparse vectors of an index from those of its parts, in their order.

    It reads the parts one by one, so that its memory does not depend on their number.

    Raises:
        OSError: the disk is full.
    """
    folder = index / FOLDER
    folder.mkdir(exist_ok=True)
    counts = np.concatenate([np.empty(0, np.int64), *(part["counts"] for part in _read(parts))])
    of_terms = np.zeros(vocabulary_size, np.int64)
    for part in _read(parts):
        of_terms += np.bincount(part["terms"], minlength=vocabulary_size)
    id_dtype = np.uint16 if vocabulary_size <= _MAX_UINT16_TERMS else np.uint32
    _, terms, weights = _allocate(folder, _BY_ROW, counts, id_dtype)
    starts, rows, row_weights = _allocate(folder, _BY_TERM, of_terms, np.uint32)
    truncated = np.lib.format.open_memmap(folder / _TRUNCATED, mode="w+", dtype=np.bool_, shape=(len(counts),))
    next_of_term = np.array(starts[:-1])
    first_row = first = 0
    for part in _read(parts):
        n, numbers = len(part["counts"]), len(part["terms"])
        terms[first : first + numbers], weights[first : first + numbers] = part["terms"], part["weights"]
        truncated[first_row : first_row + n] = part["truncated"]
        order = np.argsort(part["terms"], kind="stable")
        of_term = part["terms"][order]
        places = next_of_term[of_term] + np.arange(numbers) - np.searchsorted(of_term, of_term)
        rows[places] = (first_row + np.repeat(np.arange(n), part["counts"]))[order]
        row_weights[places] = part["weights"][order]
        next_of_term += np.bincount(of_term, minlength=vocabulary_size)
        first_row, first = first_row + n, first + numbers


def _read(parts: Sequence[Path]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    for path in parts:
        with np.load(path) as arrays:
            yield dict(arrays)


def _allocate(folder: Path, names: Sequence[str], counts: npt.NDArray[np.int64], dtype: type) -> list[npt.NDArray[Any]]:
    """Creates the files of a sparse matrix; returns the offsets, which are written, and the ids and weights."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    np.save(folder / names[0], offsets)
    arrays: list[npt.NDArray[Any]] = [offsets]
    for name, number_type in zip(names[1:], (dtype, np.float16), strict=True):
        path = folder / name
        arrays.append(np.lib.format.open_memmap(path, mode="w+", dtype=number_type, shape=(int(offsets[-1]),)))
        reserve(path)
    return arrays
