"""Re-encoded index: searchable, names its new encoder, and resumes after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rerank_training.retriever import reencoding
from rerank_training.retriever.model import TrainableEncoder
from rerank_training.retriever.reencoding import reencode

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index, read_manifest
from rerank.types import FirstStage, Matrix, Query

CHUNK = 5


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def other(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The same model with one changed weight."""
    folder = tmp_path_factory.mktemp("encoders") / "other"
    model = TrainableEncoder(encoder.folder, lora_rank=0, lora_alpha=1)
    model.encoder[0].auto_model.embeddings.LayerNorm.bias.data[0] += 1
    model.save_pretrained(folder)
    return Encoder(str(folder), "cpu")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencoding, "_CHUNK", CHUNK)


def nothing(stage: str, done: int, total: int | None) -> None:
    pass


def killed_after(monkeypatch: pytest.MonkeyPatch, chunks: int) -> list[int]:
    """Ends the encoding at this chunk; returns the sizes of the encoded chunks."""
    encoded: list[int] = []
    original = Encoder.encode

    def encode(self: Encoder, texts: Sequence[str], batch_size: int = 16) -> Matrix:
        if len(encoded) == chunks:
            raise Killed
        encoded.append(len(texts))
        return original(self, texts, batch_size)

    monkeypatch.setattr(Encoder, "encode", encode)
    return encoded


def test_new_index_finds_with_the_new_vectors(index_folder: Path, other: Encoder, tmp_path: Path) -> None:
    reencode(index_folder, tmp_path / "new", other, nothing)
    opened = Index(tmp_path / "new", other)
    passages = opened.store.passages(["flea", "moon", "cello"])
    expected = other.encode([passage.text for passage in passages])
    np.testing.assert_allclose(np.stack([p.vector for p in passages if p.vector is not None]), expected, atol=1e-6)
    assert opened.retrievers[FirstStage.DENSE].search([Query("string instruments")], 3)[0]
    assert opened.retrievers[FirstStage.BM25].search([Query("flea")], 1)[0][0].doc_id == "flea"


def test_manifest_names_the_new_encoder_and_keeps_the_rest(index_folder: Path, other: Encoder, tmp_path: Path) -> None:
    reencode(index_folder, tmp_path / "new", other, nothing)
    before, after = read_manifest(index_folder), read_manifest(tmp_path / "new")
    assert after.encoder == other.id
    assert (after.collection, after.passages, after.dense) == (before.collection, before.passages, before.dense)


def test_killed_encoding_resumes(
    index_folder: Path, other: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reencode(index_folder, tmp_path / "uninterrupted", other, nothing)
    with monkeypatch.context() as patch:
        killed_after(patch, 2)
        with pytest.raises(Killed):
            reencode(index_folder, tmp_path / "killed", other, nothing)
    assert not (tmp_path / "killed").exists()
    with monkeypatch.context() as patch:
        encoded = killed_after(patch, 100)
        reencode(index_folder, tmp_path / "killed", other, nothing)
    assert encoded == [2]  # 12 passages in chunks of five, two of them done
    vectors = [np.load(tmp_path / name / "vectors.npy") for name in ("uninterrupted", "killed")]
    assert np.array_equal(*vectors)


def test_vectors_of_another_encoder_are_not_reused(
    index_folder: Path, encoder: Encoder, other: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        killed_after(patch, 2)
        with pytest.raises(Killed):
            reencode(index_folder, tmp_path / "new", other, nothing)
    reencode(index_folder, tmp_path / "new", encoder, nothing)
    vectors = [np.load(folder / "vectors.npy") for folder in (index_folder, tmp_path / "new")]
    np.testing.assert_allclose(*vectors, atol=1e-6)


def test_temporary_files_are_removed(index_folder: Path, other: Encoder, tmp_path: Path) -> None:
    reencode(index_folder, tmp_path / "new", other, nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_index_is_not_overwritten(index_folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        reencode(index_folder, tmp_path / "new", encoder, nothing)
