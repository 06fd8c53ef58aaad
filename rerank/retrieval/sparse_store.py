"""Sparse vectors of the passages of an index, which the fusion reads instead of encoding the texts.

They are stored as a compressed sparse matrix: offsets of the rows, ids of terms, and weights in float16, whose rounding
error is at most 0.05 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank.retrieval.index_format import ArrayFile, damaged
from rerank.retrieval.parts import join_parts, read_parts
from rerank.util.sparse_vectors import SparseVector

#: Folder of the sparse vectors in the folder of an index.
FOLDER = "sparse"
_OFFSETS, _TERMS, _WEIGHTS, _TRUNCATED = "offsets.npy", "terms.npy", "weights.npy", "truncated.npy"
#: Largest vocabulary whose ids fit into 16 bits.
_MAX_UINT16_TERMS = 1 << 16


class SparseStore:
    """Reads the sparse vectors that `join_sparse_vectors` wrote to an index. No file is memory-mapped.

    Args:
        index: folder of the index.
        passages: number of passages in the index.
        vocabulary_size: number of terms in the vocabulary of the sparse encoder.

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
        if len(terms) and int(terms[-1]) >= self._vocabulary_size:  # the last term is the largest
            problem = f"row {row} has the term {terms[-1]}, and the vocabulary {self._vocabulary_size} terms"
            raise damaged(self._folder, problem)
        return SparseVector(terms.astype(np.int32), weights.astype(np.float32), bool(self._truncated[row]))


def _open_numbers(path: Path, numbers: int) -> ArrayFile:
    file = ArrayFile(path, None, dimensions=1)
    if file.dtype not in (np.uint16, np.uint32, np.float16) or len(file) != numbers:
        raise damaged(path, f"it has {len(file)} numbers of {file.dtype} instead of {numbers}")
    return file


def part_arrays(vectors: Sequence[SparseVector], vocabulary_size: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a part (see rerank.retrieval.parts) with the sparse vectors of some rows."""
    terms = np.concatenate([np.empty(0, np.int32), *(vector.terms for vector in vectors)])
    weights = np.concatenate([np.empty(0, np.float32), *(vector.weights for vector in vectors)])
    return {
        "counts": np.array([len(vector.terms) for vector in vectors], dtype=np.int64),
        "terms": terms.astype(np.uint16 if vocabulary_size <= _MAX_UINT16_TERMS else np.uint32),
        "weights": weights.astype(np.float16),
        "truncated": np.array([vector.is_truncated for vector in vectors], dtype=np.bool_),
    }


def join_sparse_vectors(parts: Sequence[Path], index: Path) -> None:
    """Writes the sparse vectors of an index from its parts, in their order. Raises: OSError if the disk is full."""
    folder = index / FOLDER
    folder.mkdir(exist_ok=True)
    counts = np.concatenate(list(read_parts(parts, "counts")))
    np.save(folder / _OFFSETS, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]))
    for name, file in (("terms", _TERMS), ("weights", _WEIGHTS), ("truncated", _TRUNCATED)):
        join_parts(parts, name, folder / file)
