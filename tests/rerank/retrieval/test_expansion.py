"""Expanded index: vectors compared with the formula, resumed after a kill, and refused where it makes no sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rerank_training.retriever.reencoding import reencode

from rerank.collections import open_collection
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval import expansion as expansion_module
from rerank.retrieval.build import BuildSettings, build_index
from rerank.retrieval.expansion import expand_index
from rerank.retrieval.index import Expansion, Index, read_manifest
from rerank.types import FirstStage, Query


class Killed(Exception):
    """Stands for the end of the process."""


def vectors_of(folder: Path) -> np.ndarray:
    return np.load(folder / "vectors.npy")


def expected(vectors: np.ndarray, neighbours: int, weight: float) -> np.ndarray:
    """The formula, passage by passage."""
    rows = []
    for row, vector in enumerate(vectors):
        cosines = vectors @ vector
        cosines[row] = -np.inf
        nearest = np.argsort(-cosines)[:neighbours]
        rows.append(vector + weight * vectors[nearest].mean(axis=0))
    return np.stack([row / np.linalg.norm(row) for row in rows])


@pytest.mark.parametrize(("neighbours", "weight"), [(1, 0.5), (5, 0.0), (11, 2.0), (100, 0.8)])
def test_vectors_are_those_of_the_formula(
    index_folder: Path, encoder: Encoder, tmp_path: Path, neighbours: int, weight: float
) -> None:
    """With weight 0 they stay as they are; with more neighbours than passages, these are all the others."""
    expand_index(index_folder, tmp_path / "new", encoder, Expansion(neighbours=neighbours, weight=weight))
    before, after = vectors_of(index_folder), vectors_of(tmp_path / "new")
    np.testing.assert_allclose(after, expected(before, min(neighbours, len(before) - 1), weight), atol=1e-6)


def test_neighbours_are_those_of_the_first_stage(index_folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    settings = Expansion(neighbours=1, weight=1, first_stage=FirstStage.BM25)
    expand_index(index_folder, tmp_path / "new", encoder, settings)
    opened = Index(index_folder, encoder)
    store, after = opened.store, vectors_of(tmp_path / "new")
    for row in range(len(store)):
        (passage,) = store.at_rows([row])
        (hits,) = opened.search_rows(FirstStage.BM25, [Query(passage.text)], 100)
        nearest = [hit.row for hit in hits if hit.row != row][:1]
        moved = store.vectors.read([row, *nearest]).sum(axis=0)
        np.testing.assert_allclose(after[row], moved / np.linalg.norm(moved), atol=1e-6)


def test_approximate_search_finds_the_expanded_vectors(beir_folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    build_index(
        open_collection(str(beir_folder)), tmp_path / "hnsw", encoder, settings=BuildSettings("hnsw", workers=1)
    )
    manifest = expand_index(tmp_path / "hnsw", tmp_path / "new", encoder, Expansion())
    opened = Index(tmp_path / "new", encoder)
    (found,) = opened.search(FirstStage.DENSE, [Query("string instruments")], 1)
    query = encoder.encode_passages(["string instruments"])[0]
    assert found[0].score == pytest.approx(float((vectors_of(tmp_path / "new") @ query).max()), abs=1e-5)
    assert manifest.dense == "hnsw"
    assert manifest.dense_recall_at_100 == 1.0


def test_killed_expansion_resumes(
    index_folder: Path, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expansion_module, "_BLOCK", 5)
    expand_index(index_folder, tmp_path / "uninterrupted", encoder, Expansion())

    def kill(stage: str, done: int, total: int | None) -> None:
        if done == 5:
            raise Killed

    with pytest.raises(Killed):
        expand_index(index_folder, tmp_path / "killed", encoder, Expansion(), kill)
    assert not (tmp_path / "killed").exists()
    reports: list[tuple[str, int, int | None]] = []
    expand_index(index_folder, tmp_path / "killed", encoder, Expansion(), lambda *report: reports.append(report))
    assert [done for _, done, _ in reports] == [5, 10, 12]
    assert np.array_equal(vectors_of(tmp_path / "uninterrupted"), vectors_of(tmp_path / "killed"))


def test_expanded_index_is_not_expanded_again_nor_when_it_is_reencoded(
    index_folder: Path, encoder: Encoder, tmp_path: Path
) -> None:
    expand_index(index_folder, tmp_path / "once", encoder, Expansion())
    with pytest.raises(ConfigError, match="is expanded already; expand the index that it was made of"):
        expand_index(tmp_path / "once", tmp_path / "twice", encoder, Expansion())
    reencode(tmp_path / "once", tmp_path / "new", encoder, lambda *_: None)
    assert read_manifest(tmp_path / "new").expansion is None
    np.testing.assert_allclose(vectors_of(tmp_path / "new"), vectors_of(index_folder), atol=1e-6)
