"""Sparse vectors of an index: they are the encoder's, a service that reads none does not open them, damage is named."""

from pathlib import Path

import numpy as np
import pytest

from rerank.collections import Collection
from rerank.config import ServiceConfig
from rerank.errors import IndexMismatch
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.reranking.reranker import load_reranker
from rerank.retrieval.build import BuildSettings, build_index
from rerank.retrieval.index import Index
from rerank.retrieval.parts import write_part
from rerank.retrieval.sparse_store import FOLDER, SparseStore, join_sparse_vectors, part_arrays
from rerank.types import FirstStage, Passage, Query
from rerank.util.sparse_vectors import SparseVector
from tests.conftest import PASSAGES
from tests.sparse_encoders import write_sparse_encoder

TERMS = 50


def collection() -> Collection:
    texts = [f"{title} {text}" for title, text in PASSAGES.values()]
    return Collection("short", lambda: (Passage(f"d{row}", text) for row, text in enumerate([*texts, "z " * 200])))


@pytest.fixture(scope="module")
def sparse_encoder(tmp_path_factory: pytest.TempPathFactory) -> SparseEncoder:
    return SparseEncoder(write_sparse_encoder(tmp_path_factory.mktemp("sparse") / "bert"), "cpu")


@pytest.fixture(scope="module")
def folder(encoder: Encoder, sparse_encoder: SparseEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("with-sparse") / "index"
    build_index(collection(), out, encoder, settings=BuildSettings(workers=1), sparse_encoder=sparse_encoder)
    return out


def random_vectors(n: int, seed: int = 0) -> list[SparseVector]:
    """Vectors of 0 to 9 terms."""
    draw = np.random.default_rng(seed)
    chosen = [np.sort(draw.choice(TERMS, draw.integers(10), replace=False)) for _ in range(n)]
    weights = [draw.uniform(0.1, 3, len(terms)).astype(np.float32) for terms in chosen]
    rows = zip(chosen, weights, draw.integers(2, size=n), strict=True)
    return [SparseVector(terms.astype(np.int32), of_terms, bool(is_cut)) for terms, of_terms, is_cut in rows]


def stored(folder: Path, vectors: list[SparseVector], sizes: list[int]) -> SparseStore:
    """The store of vectors that were written in parts of these sizes."""
    parts, rest = [folder / f"{number}.npz" for number in range(len(sizes))], list(vectors)
    for path, size in zip(parts, sizes, strict=True):
        write_part(path, part_arrays(rest[:size], TERMS))
        rest = rest[size:]
    join_sparse_vectors(parts, folder)
    return SparseStore(folder, len(vectors), TERMS)


@pytest.mark.parametrize("sizes", [[20], [7, 7, 6], [0, 20], [1] * 20])
def test_vectors_come_back(sizes, tmp_path):
    vectors = random_vectors(20)
    store = stored(tmp_path, vectors, sizes)
    for row, vector in enumerate(vectors):
        found = store.read(row)
        assert found.terms.tolist() == vector.terms.tolist()
        assert found.is_truncated == vector.is_truncated
        np.testing.assert_allclose(found.weights, vector.weights, rtol=1e-3)


def test_passages_of_an_index_have_the_vectors_of_the_encoder(folder, encoder, sparse_encoder):
    index = Index(folder, encoder, lambda: sparse_encoder)
    candidates = index.candidates(FirstStage.DENSE, Query("music"), 13)
    vectors = sparse_encoder.encode_passages([candidate.text for candidate in candidates])
    for candidate, vector in zip(candidates, vectors, strict=True):
        assert isinstance(candidate.sparse, SparseVector)
        found = dict(zip(candidate.sparse.terms.tolist(), candidate.sparse.weights, strict=True))
        expected = dict(zip(vector.terms.tolist(), vector.weights, strict=True))
        for term in {*found, *expected}:
            assert found.get(term, 0.0) == pytest.approx(expected.get(term, 0.0), abs=0.05)
        assert candidate.sparse.is_truncated == candidate.text.startswith("z z")
    assert index.manifest.sparse_encoder == sparse_encoder.id


def test_vectors_of_another_sparse_encoder_are_refused(folder, encoder, tmp_path):
    other = SparseEncoder(write_sparse_encoder(tmp_path / "other", "distilbert"), "cpu")
    with pytest.raises(IndexMismatch, match=r"sparse vectors of .* are from .*bert .*set sparse_encoder to the former"):
        Index(folder, encoder, lambda: other)


@pytest.mark.parametrize("ranker", ["fusion", "identity"])
def test_service_opens_them_if_a_model_reads_them(folder, sparse_encoder, ranker):
    settings = {"sparse_encoder": str(sparse_encoder.folder), "models": [{"name": "a", "ranker": ranker}]}
    index = load_reranker(ServiceConfig.model_validate({"index": folder, **settings})).index
    assert (index.store.at_rows([0])[0].sparse is not None) == (ranker == "fusion")


@pytest.mark.parametrize("name", ["offsets.npy", "terms.npy", "weights.npy", "truncated.npy"])
def test_damaged_file_is_named(name, tmp_path):
    stored(tmp_path, random_vectors(20), [20])
    path = tmp_path / FOLDER / name
    for damage in (lambda: np.save(path, np.load(path)[:-1]), lambda: path.write_bytes(b"\x93NUMPY"), path.unlink):
        damage()
        with pytest.raises(IndexMismatch, match=rf"{name} is damaged.*copy the index again, or build it again"):
            SparseStore(tmp_path, 20, TERMS)


def test_offsets_that_fall_and_terms_of_no_vocabulary_are_damage(tmp_path):
    store = stored(tmp_path, random_vectors(20), [20])
    row = next(row for row in range(20) if len(store.read(row).terms))
    for name, value in (("offsets.npy", -1), ("terms.npy", TERMS)):
        path = tmp_path / FOLDER / name
        numbers = np.load(path)
        changed = numbers.copy()
        changed[len(store.read(0).terms) if name == "terms.npy" else 5] = value
        changed = np.full_like(numbers, value) if name == "terms.npy" else changed
        np.save(path, changed)
        with pytest.raises(IndexMismatch, match="is damaged"):
            SparseStore(tmp_path, 20, TERMS).read(row)
        np.save(path, numbers)
