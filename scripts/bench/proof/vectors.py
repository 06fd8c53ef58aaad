"""Exact search of FAISS on GPUs, where it is installed, compared with the CPU's."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np

from rerank.types import Matrix
from scripts.bench.proof.sections import Row, failed, timed
from scripts.bench.proof.setting import Proof

_VECTORS, _QUERIES, _DIMENSION, _DEPTH = 200_000, 64, 384, 100
#: TF32 and the order of sums swap neighbours whose products differ in the last bits.
_LEAST_SHARE = 0.999


def prove_vectors(proof: Proof) -> Iterator[Row]:
    """The share of the rows found that the CPU finds, too, and the time of a search."""
    what = "FAISS on the GPU"
    if importlib.util.find_spec("faiss") is None:
        yield Row(what, "not installed")
        return
    import faiss

    from rerank.retrieval.dense import open_vector_index, recall_of
    from rerank.retrieval.store import VectorFile

    if not faiss.get_num_gpus():
        yield Row(what, "this build finds none")
        return
    vectors, queries = _unit_vectors(_VECTORS), _unit_vectors(_QUERIES)
    path = proof.folder / "vectors.npy"
    np.save(path, vectors)
    file = VectorFile(path)
    index = open_vector_index("flat", proof.folder, file)
    share = recall_of(index, file, queries, _DEPTH)
    name = f"{what}, {_VECTORS:,} vectors of {_DIMENSION}"
    if share < _LEAST_SHARE:
        yield failed(name, f"{share:.4f} of the rows equal the CPU's, at least {_LEAST_SHARE} are expected")
    yield Row(f"{name}: the share of rows that are the CPU's", f"{share:.5f}")
    yield timed(f"{name}: {_QUERIES} queries", proof.ms(lambda: index.search(queries, _DEPTH)))


def _unit_vectors(n: int) -> Matrix:
    vectors = np.random.default_rng(n).standard_normal((n, _DIMENSION), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
