"""Sparse vectors of the passages of an index, which the fusion reads instead of running a model on their texts.

They are a compressed sparse matrix: offsets of the rows, ids of terms, and weights in float16, exact to 0.05 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank.retrieval.index_format import ArrayFile, damaged, reserve
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
        self._offsets: npt.NDArray[np.int64] = ArrayFile(offsets, np.int64, dimensions=1).read()
        if len(self._offsets) != passages + 1 or self._offsets[0] != 0 or (np.diff(self._offsets) < 0).any():
            raise damaged(offsets, f"it does not have the {passages + 1} increasing offsets of {passages} rows")
        numbers = int(self._offsets[-1])
        self._terms, self._weights = (_open_numbers(self._folder / name, numbers) for name in (_TERMS, _WEIGHTS))
        self._truncated: npt.NDArray[np.bool_] = ArrayFile(self._folder / _TRUNCATED, np.bool_, dimensions=1).read()
        if len(self._truncated) != passages:
            raise damaged(self._folder / _TRUNCATED, f"it has {len(self._truncated)} numbers instead of {passages}")

    def read(self, row: int) -> SparseVector:
        """The vector of a row. Raises: IndexMismatch if a term is not in the vocabulary."""
        first, stop = int(self._offsets[row]), int(self._offsets[row + 1])
        terms, weights = self._terms.read(first, stop), self._weights.read(first, stop)
        if len(terms) and int(terms[-1]) >= self._vocabulary_size:  # they increase
            raise damaged(self._folder, f"term {terms[-1]} of row {row}, of {self._vocabulary_size}")
        return SparseVector(terms.astype(np.int32), weights.astype(np.float32), bool(self._truncated[row]))


def _open_numbers(path: Path, numbers: int) -> ArrayFile:
    file = ArrayFile(path, None, dimensions=1)
    if file.dtype not in (np.uint16, np.uint32, np.float16) or len(file) != numbers:
        raise damaged(path, f"it has {len(file)} numbers of {file.dtype} instead of {numbers}")
    return file


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
