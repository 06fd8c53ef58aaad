"""Re-encoded index: searchable, names its new encoder, and resumes after a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rerank_training.retriever.distillation import reencode
from rerank_training.retriever.encoder import TrainableEncoder

from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index, read_manifest
from rerank.types import FirstStage, Query


class Killed(Exception):
    """Acts as the end of the process."""


@pytest.fixture(scope="module")
def other(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The same model with one changed weight."""
    folder = tmp_path_factory.mktemp("encoders") / "other"
    model = TrainableEncoder(encoder, lora_rank=0)
    model.encoder[0].auto_model.embeddings.LayerNorm.bias.data[0] += 1
    model.save_pretrained(folder)
    return Encoder(str(folder), "cpu")


def nothing(stage: str, done: int, total: int | None) -> None:
    pass


def kill_at_the_end(stage: str, done: int, total: int | None) -> None:
    """A progress callback that ends the encoding when all vectors are stored."""
    if done == total:
        raise Killed


def test_new_index_finds_with_the_new_vectors_names_its_encoder_and_keeps_the_rest(
    index_folder: Path, other: Encoder, tmp_path: Path
) -> None:
    reencode(index_folder, tmp_path / "new", other, nothing)
    opened = Index(tmp_path / "new", other)
    passages = opened.store.passages(["flea", "moon", "cello"])
    expected = other.encode_passages([passage.text for passage in passages])
    np.testing.assert_allclose(np.stack([p.vector for p in passages if p.vector is not None]), expected, atol=1e-6)
    assert opened.search(FirstStage.DENSE, [Query("string instruments")], 3)[0]
    assert opened.search(FirstStage.BM25, [Query("flea")], 1)[0][0].doc_id == "flea"
    before, after = read_manifest(index_folder), read_manifest(tmp_path / "new")
    assert after.encoder == other.id
    assert (after.collection, after.passages, after.dense) == (before.collection, before.passages, before.dense)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_killed_encoding_resumes(index_folder: Path, other: Encoder, tmp_path: Path) -> None:
    reencode(index_folder, tmp_path / "uninterrupted", other, nothing)
    with pytest.raises(Killed):
        reencode(index_folder, tmp_path / "killed", other, kill_at_the_end)
    assert not (tmp_path / "killed").exists()
    reports: list[tuple[str, int, int | None]] = []
    reencode(index_folder, tmp_path / "killed", other, lambda *report: reports.append(report))
    assert reports == [("vectors", 12, 12)]  # which are there when the second call begins
    vectors = [np.load(tmp_path / name / "vectors.npy") for name in ("uninterrupted", "killed")]
    assert np.array_equal(*vectors)


def test_vectors_of_another_encoder_are_not_reused(
    index_folder: Path, encoder: Encoder, other: Encoder, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        reencode(index_folder, tmp_path / "new", other, kill_at_the_end)
    reencode(index_folder, tmp_path / "new", encoder, nothing)
    vectors = [np.load(folder / "vectors.npy") for folder in (index_folder, tmp_path / "new")]
    np.testing.assert_allclose(*vectors, atol=1e-6)
