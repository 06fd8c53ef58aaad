"""Search among the vectors of an index with FAISS: exact (flat), or approximate by an HNSW graph.

Both kinds return exact inner products of the stored vectors. The graph is in memory, and so are vectors of up to 1 GiB;
larger files are read for each search. No file is memory-mapped, because truncating a mapped file ends the process
(SIGBUS).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval.index_format import DenseKind, damaged
from rerank.retrieval.store import ScoredRow, VectorFile
from rerank.types import Matrix, Query
from rerank.util.files import atomic_file
from rerank.util.memory import available_bytes

#: (Q, depth) float32 scores and int64 rows, best first; rows are -1 where no more are found.
ScoresAndRows: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

_FILE = "hnsw.faiss"
#: M, efConstruction and efSearch of Malkov and Yashunin 2018: links of a node, and candidates that construction and
#: search keep.
_HNSW_M, _HNSW_EF_CONSTRUCTION, _HNSW_EF_SEARCH = 32, 100, 512
#: Least number of vectors that are added to an unfinished graph between two saves.
_SAVE_EVERY = 32_768
#: A larger graph grows by its size divided by this number between two saves.
_SAVE_SHARE = 8
#: Largest file of vectors that is copied into memory.
_COPIED_BYTES = 1 << 30
#: Rows of a larger file that are read at once.
_BLOCK_ROWS = 32_768


@cache
def faiss_package() -> Any:  # FAISS has no annotations for the classes that SWIG generates
    """Imports FAISS, which only an index needs. Raises: ConfigError if it is not installed."""
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise ConfigError(
            "FAISS is not installed; install rerank-listwise[cpu], or rerank-listwise[gpu] on a machine with CUDA"
        ) from error
    return faiss


class VectorIndex(Protocol):
    """Finds the vectors with the largest inner products."""

    def search(self, queries: Matrix, depth: int) -> ScoresAndRows:
        """The best `depth` rows of the index for each of Q vectors (Q, D)."""
        ...


def open_vector_index(kind: DenseKind, folder: Path, vectors: VectorFile) -> VectorIndex:
    """Opens the vectors of an index for search; on GPUs, if this build of FAISS finds any and the kind is flat.

    Raises:
        ConfigError: FAISS is not installed, or the graph of hnsw is larger than the free memory.
        IndexMismatch: the file that `write_vector_index` wrote to `folder` is missing or damaged.
    """
    if kind == "flat":
        return _on_gpus(vectors) if faiss_package().get_num_gpus() else _Flat(vectors)
    return _Graph(folder / _FILE, vectors)


def write_vector_index(
    kind: DenseKind, folder: Path, vectors: VectorFile, threads: int, report: Callable[[int], None]
) -> None:
    """Writes the graph of hnsw, and nothing for flat. A call after a kill resumes from the last save.

    Args:
        vectors: the vectors. The graph in memory holds copies in float16.
        threads: number of threads; with several, the graph differs a little from build to build.
        report: called with the number of vectors that are in the file.

    Raises:
        OSError: the disk is full.
    """
    if kind == "flat":
        return
    path = folder / _FILE
    for unfinished in folder.glob(f".{path.name}.*"):  # left by a process that was killed during a save
        unfinished.unlink()
    with _faiss_threads(threads):
        index = faiss_package().read_index(str(path)) if path.exists() else _created(vectors.shape[1])
        while index.ntotal < len(vectors):
            report(index.ntotal)
            first = index.ntotal
            stop = min(len(vectors), first + max(_SAVE_EVERY, first // _SAVE_SHARE))
            index.hnsw.rng = faiss_package().RandomGenerator(first)  # so that a resumed graph gets the same levels
            index.add(vectors.read(first, stop))
            with atomic_file(path) as temporary:
                _write(index, temporary)
    report(len(vectors))


def recall_of(index: VectorIndex, vectors: VectorFile, queries: Matrix, depth: int) -> float:
    """Mean share, over queries (Q, D), of the `depth` best rows of exact search that the index finds."""
    depth = min(depth, len(vectors))
    _, exact = _Flat(vectors).search(queries, depth)
    _, found = index.search(queries, depth)
    return float(np.mean([len(np.intersect1d(a, b)) / depth for a, b in zip(exact, found, strict=True)]))


class _Flat:
    """Exact search that reads all vectors."""

    def __init__(self, vectors: VectorFile) -> None:
        self._vectors = vectors
        self._copy = vectors.read() if vectors.nbytes <= _COPIED_BYTES else None

    def search(self, queries: Matrix, depth: int) -> ScoresAndRows:
        if self._copy is not None:
            return _nearest(queries, self._copy, depth)
        best: ScoresAndRows = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        for first, block in _blocks(self._vectors):
            scores, rows = _nearest(queries, block, depth)
            scores, rows = np.hstack([best[0], scores]), np.hstack([best[1], np.where(rows < 0, rows, rows + first)])
            order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
            best = np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
        return best


def _nearest(queries: Matrix, vectors: Matrix, depth: int) -> ScoresAndRows:
    found: ScoresAndRows = faiss_package().knn(queries, vectors, depth, metric=faiss_package().METRIC_INNER_PRODUCT)
    return found


def _blocks(vectors: VectorFile) -> Iterator[tuple[int, Matrix]]:
    """(first row, vectors) of each block of rows."""
    for first in range(0, len(vectors), _BLOCK_ROWS):
        yield first, vectors.read(first, min(len(vectors), first + _BLOCK_ROWS))


class _Graph:
    """Finds vectors by an HNSW graph, and scores them exactly."""

    def __init__(self, path: Path, vectors: VectorFile) -> None:
        self._vectors, self._index = vectors, _read(path, vectors.shape)

    def search(self, queries: Matrix, depth: int) -> ScoresAndRows:
        _, rows = self._index.search(queries, min(depth, len(self._vectors)))
        best = [self._exact(query, found, depth) for query, found in zip(queries, rows, strict=True)]
        return np.stack([scores for scores, _ in best]), np.stack([found for _, found in best])

    def _exact(self, query: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], depth: int) -> ScoresAndRows:
        rows = np.sort(rows[rows >= 0])
        scores = self._vectors.at_rows(rows.tolist()) @ query
        order = np.argsort(-scores, kind="stable")[:depth]
        missing = (0, depth - len(order))
        return np.pad(scores[order], missing), np.pad(rows[order], missing, constant_values=-1)


def _created(dimension: int) -> Any:
    index = faiss_package().IndexHNSWSQ(
        dimension, faiss_package().ScalarQuantizer.QT_fp16, _HNSW_M, faiss_package().METRIC_INNER_PRODUCT
    )
    index.hnsw.efConstruction, index.hnsw.efSearch = _HNSW_EF_CONSTRUCTION, _HNSW_EF_SEARCH
    return index


def _write(index: Any, path: Path) -> None:
    try:
        faiss_package().write_index(index, str(path))
    except RuntimeError as error:  # a long message that ends with the reason in parentheses
        reason = re.search(r"\(([^()]+)\)\s*$", str(error))
        raise OSError(errno.EIO, reason[1] if reason else str(error), str(path)) from error


def _read(path: Path, shape: tuple[int, ...]) -> Any:
    try:
        size, free = path.stat().st_size, available_bytes(torch.device("cpu"))
    except OSError as error:
        raise damaged(path, error.strerror or error) from error
    if free is not None and size > free:
        raise ConfigError(
            f"{path} takes {size / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free; free memory, or build the "
            "index with --dense flat, which reads the vectors for each search"
        )
    try:
        index = faiss_package().read_index(str(path))
    except (RuntimeError, MemoryError) as error:  # a damaged header may state a length beyond all memory
        raise damaged(path, f"FAISS cannot read it ({' '.join(str(error).split())})") from error
    if (index.ntotal, index.d) != shape:
        n, width = shape
        raise damaged(path, f"it has {index.ntotal} vectors of width {index.d} instead of {n} of width {width}")
    return index


def _on_gpus(vectors: VectorFile) -> VectorIndex:
    index = faiss_package().IndexFlatIP(vectors.shape[1])
    for _, block in _blocks(vectors):
        index.add(block)
    on_gpus: VectorIndex = faiss_package().index_cpu_to_all_gpus(index)
    return on_gpus


@contextmanager
def _faiss_threads(threads: int) -> Iterator[None]:
    before = faiss_package().omp_get_max_threads()
    faiss_package().omp_set_num_threads(threads)
    try:
        yield
    finally:
        faiss_package().omp_set_num_threads(before)


@dataclass(frozen=True, slots=True)
class DenseRetriever:
    """Retrieves by inner product of unit vectors, which is their cosine.

    Args:
        index: the vectors of the passages.
        encoder: the encoder of the passage vectors, for queries.
        passages: number of passages.
    """

    index: VectorIndex
    encoder: Encoder
    passages: int

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredRow]]:
        depth = min(depth, self.passages)
        if not queries or depth == 0:
            return [[] for _ in queries]
        scores, rows = self.index.search(query_vectors(self.encoder, queries), depth)
        return [_scored_rows(s, r) for s, r in zip(scores, rows, strict=True)]


def query_vectors(encoder: Encoder, queries: Sequence[Query]) -> Matrix:
    """(len(queries), D) unit vectors of the queries; queries without a vector are encoded."""
    missing = iter(encoder.encode_queries([query.text for query in queries if query.vector is None]))
    return np.stack([next(missing) if query.vector is None else query.vector for query in queries])


def _scored_rows(scores: np.ndarray, rows: np.ndarray) -> list[ScoredRow]:
    """The found passages, best first, equal scores in the order of the collection. A row of -1 is no passage."""
    found = sorted((-float(score), int(row)) for score, row in zip(scores, rows, strict=True) if row >= 0)
    return [ScoredRow(row, -negated) for negated, row in found]
