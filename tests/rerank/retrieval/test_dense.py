"""Dense retrieval: exact search is a matrix product; a graph is close to it, and is resumed after a kill."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rerank.errors import ConfigError, IndexMismatch
from rerank.models.encoder import Encoder
from rerank.retrieval import dense
from rerank.retrieval.dense import DenseRetriever, ScoresAndRows, open_vector_index, recall_of, write_vector_index
from rerank.retrieval.index_format import DenseKind
from rerank.retrieval.parts import write_part
from rerank.retrieval.store import PassageStore, VectorFile, join_vectors, part_arrays, write_passages
from rerank.types import Matrix, Passage, Query

N, D = 5_000, 16
#: Passages of the retriever.
PASSAGES = 400
KINDS: tuple[DenseKind, ...] = ("flat", "hnsw")


class Killed(Exception):
    """Acts as the end of the process."""


def unit_rows(n: int, seed: int, dimension: int = D) -> Matrix:
    rows = np.random.default_rng(seed).normal(size=(n, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> VectorFile:
    return stored(unit_rows(N, seed=1), tmp_path_factory.mktemp("vectors"))


def stored(vectors: Matrix, folder: Path) -> VectorFile:
    np.save(folder / "vectors.npy", vectors)
    return VectorFile(folder / "vectors.npy")


@pytest.fixture(scope="module")
def vectors(file: VectorFile) -> Matrix:
    return file.read()


@pytest.fixture(scope="module")
def folder(file: VectorFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all kinds."""
    folder = tmp_path_factory.mktemp("written")
    for kind in KINDS:
        write_vector_index(kind, folder, file, threads=1, report=lambda done: None)
    return folder


QUERIES = unit_rows(50, seed=2)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_exact_and_fall(kind, folder, file, vectors):
    scores, rows = open_vector_index(kind, folder, file).search(QUERIES, 20)
    assert scores.shape == rows.shape == (50, 20)
    np.testing.assert_allclose(scores, np.einsum("qkd,qd->qk", vectors[rows], QUERIES), atol=1e-6)
    assert (np.diff(scores) <= 0).all()
    assert all(len(set(found)) == 20 for found in rows.tolist())


@pytest.mark.parametrize(("kind", "least"), [("flat", 1.0), ("hnsw", 0.99)])
def test_recall_against_exact_search(kind, least, folder, file):
    found = recall_of(open_vector_index(kind, folder, file), file, QUERIES, 100)
    assert least <= found <= 1.0


def test_large_files_are_read_in_blocks_and_give_the_same(folder, file, monkeypatch):
    whole = [open_vector_index(kind, folder, file).search(QUERIES, 20) for kind in KINDS]
    monkeypatch.setattr(dense, "_COPIED_BYTES", 0)
    monkeypatch.setattr(dense, "_BLOCK_ROWS", 1024)
    for kind, expected in zip(KINDS, whole, strict=True):
        for found, one in zip(open_vector_index(kind, folder, file).search(QUERIES, 20), expected, strict=True):
            np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [True, False], ids=["copied", "large"])
def test_file_that_is_cut_while_it_is_open_ends_no_process(kind, copied, tmp_path, monkeypatch):
    """A mapped file would: SIGBUS."""
    file = stored(unit_rows(N, seed=1), tmp_path)
    write_vector_index(kind, tmp_path, file, threads=1, report=lambda done: None)
    monkeypatch.setattr(dense, "_COPIED_BYTES", 1 << 30 if copied else 0)
    index = open_vector_index(kind, tmp_path, file)
    before = index.search(QUERIES, 5)
    if kind == "hnsw":
        os.truncate(tmp_path / "hnsw.faiss", 4096)
    np.testing.assert_array_equal(index.search(QUERIES, 5), before)
    os.truncate(tmp_path / "vectors.npy", 4096)
    if copied and kind == "flat":
        np.testing.assert_array_equal(index.search(QUERIES, 5), before)
    else:
        with pytest.raises(IndexMismatch, match=r"vectors\.npy is damaged: it ends too early"):
            index.search(QUERIES, 5)


def test_graph_beyond_the_free_memory_is_refused(folder, file, monkeypatch):
    """It is read as a whole; the system would end the process."""
    size = (folder / "hnsw.faiss").stat().st_size
    for free, is_refused in ((size - 1, True), (size, False), (None, False)):
        monkeypatch.setattr(dense, "available_bytes", lambda device, free=free: free)
        with pytest.raises(ConfigError, match=r"hnsw\.faiss takes .* --dense flat") if is_refused else nullcontext():
            open_vector_index("hnsw", folder, file)


def test_killed_build_gives_the_same_file(vectors, tmp_path, monkeypatch):
    monkeypatch.setattr(dense, "_SAVE_EVERY", 600)
    first = stored(vectors[:2000], tmp_path)

    def kill(done: int) -> None:
        if done == 1200:
            raise Killed

    for name in ("killed", "undisturbed"):
        (tmp_path / name).mkdir()
    with pytest.raises(Killed):
        write_vector_index("hnsw", tmp_path / "killed", first, threads=1, report=kill)
    (tmp_path / "killed" / ".hnsw.faiss.123.writing").touch()  # as of a kill while the file was saved
    reported: list[int] = []
    write_vector_index("hnsw", tmp_path / "killed", first, threads=1, report=reported.append)
    assert reported == [1200, 1800, 2000]
    write_vector_index("hnsw", tmp_path / "undisturbed", first, threads=1, report=lambda done: None)
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["hnsw.faiss"]
    killed, undisturbed = ((tmp_path / name / "hnsw.faiss").read_bytes() for name in ("killed", "undisturbed"))
    assert killed == undisturbed


def test_missing_damaged_and_incomplete_files_are_named(folder, file, tmp_path):
    content = (folder / "hnsw.faiss").read_bytes()
    too_long = content[:4] + b"\xff" * 4 + content[8:]
    for damaged in (b"", content[:1000], b"\xa5" * 1000, too_long):
        (tmp_path / "hnsw.faiss").write_bytes(damaged)
        with pytest.raises(IndexMismatch, match=r"hnsw\.faiss is damaged"):
            open_vector_index("hnsw", tmp_path, file)
    (tmp_path / "hnsw.faiss").write_bytes(content)
    with pytest.raises(IndexMismatch, match=rf"it has {N} vectors of width 16 instead of 5 of width 16"):
        open_vector_index("hnsw", tmp_path, stored(file.read(0, 5), tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_missing_faiss_is_named_when_an_index_is_opened(kind, folder, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(dense, "faiss_package", dense.faiss_package.__wrapped__)
    with pytest.raises(ConfigError, match=r"FAISS is not installed; install rerank-listwise\[cpu\]"):
        open_vector_index(kind, folder, file)


@pytest.fixture(scope="module")
def store(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PassageStore:
    """Random vectors; passages 7 and 300 are the same."""
    folder = tmp_path_factory.mktemp("dense")
    list(write_passages(folder, (Passage(f"d{n}", "") for n in range(PASSAGES))))
    vectors = unit_rows(PASSAGES, 1, encoder.id.dimension)
    vectors[300] = vectors[7]
    write_part(folder / "part", part_arrays(vectors, [False] * PASSAGES))
    join_vectors([folder / "part"], folder)
    return PassageStore(folder)


@pytest.fixture(scope="module")
def retriever(store: PassageStore, encoder: Encoder) -> DenseRetriever:
    return DenseRetriever(open_vector_index("flat", Path(), store.vectors), encoder, PASSAGES)


def test_index_is_asked_for_no_more_passages_than_it_has(retriever, queries, monkeypatch):
    asked, search = list[int](), retriever.index.search

    def recorded(vectors: Matrix, depth: int) -> ScoresAndRows:
        asked.append(depth)
        return search(vectors, depth)

    monkeypatch.setattr(retriever.index, "search", recorded)
    (found,) = retriever.search(queries[:1], 10 * PASSAGES)
    assert (asked, len(found)) == ([PASSAGES], PASSAGES)


def test_rows_that_a_graph_does_not_find_are_left_out(folder, file, encoder, monkeypatch):
    """FAISS fills the places of passages that its search did not reach with -1."""
    graph = open_vector_index("hnsw", folder, file)
    rows = np.array([[7, -1, 3, -1]])
    monkeypatch.setattr(graph, "_index", SimpleNamespace(search=lambda queries, depth: (None, rows)))
    scores, found = graph.search(QUERIES[:1], 4)
    assert set(found[0, :2].tolist()) == {7, 3}
    assert found[0, 2:].tolist() == [-1, -1]
    monkeypatch.setattr(dense, "query_vectors", lambda encoder, queries: QUERIES[: len(queries)])
    (hits,) = DenseRetriever(graph, encoder, N).search([Query("q")], 4)
    assert [(hit.row, hit.score) for hit in hits] == list(zip(found[0, :2], scores[0, :2], strict=True))


@pytest.fixture(scope="module")
def queries(encoder: Encoder) -> list[Query]:
    return [Query(f"q{n}", vector=row) for n, row in enumerate(unit_rows(20, 2, encoder.id.dimension))]


def by_matrix_product(store: PassageStore, query: Query, depth: int) -> list[int]:
    return np.argsort(-(store.vectors.read() @ query.vector), kind="stable")[:depth].tolist()


def test_flat_search_equals_the_matrix_product(store, retriever, queries):
    found = retriever.search(queries, 50)
    assert [[hit.row for hit in hits] for hits in found] == [by_matrix_product(store, q, 50) for q in queries]


def test_equal_vectors_keep_collection_order(store, retriever):
    found = retriever.search([Query("x", vector=store.vectors.read()[7])], 2)[0]
    assert [hit.row for hit in found] == [7, 300]


def test_query_without_vector_is_encoded(encoder, retriever):
    text = "which insect jumps"
    known = Query(text, vector=encoder.encode_passages([text])[0])
    assert retriever.search([Query(text)], 10) == retriever.search([known], 10)


@pytest.mark.gpu
def test_gpu_search_equals_the_matrix_product(store, retriever, queries):
    faiss = pytest.importorskip("faiss")
    if not faiss.get_num_gpus():
        pytest.skip("this build of FAISS finds no GPU; install rerank-listwise[gpu]")
    found = retriever.search(queries, 10)
    assert [[hit.row for hit in hits] for hits in found] == [by_matrix_product(store, q, 10) for q in queries]
