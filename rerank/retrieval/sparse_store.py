"""Sparse vectors of the passages of an index, which the fusion reads instead of running a model on their texts.

They are a compressed sparse matrix: offsets of the rows, ids of terms, and weights in float16, exact to 0.05 %.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank.retrieval.index_format import damaged, open_array, reserve
from rerank.util.files import atomic_file
from rerank.util.sparse_vectors import SparseVector

FOLDER = "sparse"
_OFFSETS, _TERMS, _WEIGHTS, _TRUNCATED = "offsets.npy", "terms.npy", "weights.npy", "truncated.npy"
_MAX_UINT16_TERMS = 1 << 16


class SparseStore:
    """Reads the sparse vectors that `join_parts` wrote to an index. Rows are read, and not memory-mapped.

    Args:
        index: folder of the index.
        passages: number of its rows.
        vocabulary_size: number of terms of its sparse encoder.

    Raises:
        IndexMismatch: a file is missing or damaged.
    """

    def __init__(self, index: Path, passages: int, vocabulary_size: int) -> None:
        self._folder = index / FOLDER
        self._vocabulary_size = vocabulary_size
        offsets = self._folder / _OFFSETS
        self._offsets: npt.NDArray[np.int64] = np.array(open_array(offsets, np.int64, dimensions=1))
        if len(self._offsets) != passages + 1 or self._offsets[0] != 0 or (np.diff(self._offsets) < 0).any():
            raise damaged(offsets, f"it does not have the {passages + 1} increasing offsets of {passages} rows")
        numbers = int(self._offsets[-1])
        self._terms, self._weights = (_NumberFile(self._folder / name, numbers) for name in (_TERMS, _WEIGHTS))
        self._truncated: npt.NDArray[np.bool_] = open_array(self._folder / _TRUNCATED, np.bool_, dimensions=1)
        if len(self._truncated) != passages:
            raise damaged(self._folder / _TRUNCATED, f"it has {len(self._truncated)} numbers instead of {passages}")

    def read(self, row: int) -> SparseVector:
        """The vector of a row. Raises: IndexMismatch if a term is not in the vocabulary."""
        first, stop = int(self._offsets[row]), int(self._offsets[row + 1])
        terms, weights = self._terms.read(first, stop), self._weights.read(first, stop)
        if len(terms) and int(terms[-1]) >= self._vocabulary_size:  # they increase
            raise damaged(self._folder, f"term {terms[-1]} of row {row}, of {self._vocabulary_size}")
        return SparseVector(terms.astype(np.int32), weights.astype(np.float32), bool(self._truncated[row]))


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
    """Writes the vectors of some rows to a separate file."""
    counts = np.array([len(vector.terms) for vector in vectors], dtype=np.int64)
    terms = np.concatenate([np.empty(0, np.int32), *(vector.terms for vector in vectors)])
    weights = np.concatenate([np.empty(0, np.float32), *(vector.weights for vector in vectors)])
    truncated = np.array([vector.is_truncated for vector in vectors], dtype=np.bool_)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, counts=counts, terms=terms, weights=weights.astype(np.float16), truncated=truncated)


def join_parts(parts: Sequence[Path], index: Path, vocabulary_size: int) -> None:
    """Writes the sparse vectors of an index from the files of its parts, in their order.

    It reads the parts one by one, so that its memory does not depend on their number.

    Raises:
        OSError: the disk is full.
    """
    folder = index / FOLDER
    folder.mkdir(exist_ok=True)
    counts = np.concatenate([np.empty(0, np.int64), *(part["counts"] for part in _read(parts))])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    np.save(folder / _OFFSETS, offsets)
    terms = _allocate(folder / _TERMS, np.uint16 if vocabulary_size <= _MAX_UINT16_TERMS else np.uint32, offsets[-1])
    weights = _allocate(folder / _WEIGHTS, np.float16, offsets[-1])
    truncated = _allocate(folder / _TRUNCATED, np.bool_, len(counts))
    row = first = 0
    for part in _read(parts):
        n, numbers = len(part["counts"]), len(part["terms"])
        terms[first : first + numbers], weights[first : first + numbers] = part["terms"], part["weights"]
        truncated[row : row + n] = part["truncated"]
        row, first = row + n, first + numbers


def _read(parts: Sequence[Path]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    for path in parts:
        with np.load(path) as arrays:
            yield dict(arrays)


def _allocate(path: Path, dtype: type, n: int) -> npt.NDArray[Any]:
    """Creates a file of n numbers, with its space on the disk."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(int(n),))
    reserve(path)
    return array
