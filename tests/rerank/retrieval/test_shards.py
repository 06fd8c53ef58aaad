"""Encoding in shards: only the missing ones, in this or in other processes, with the same result."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval.shards import DenseJob, encode_shards
from rerank.retrieval.store import PassageStore, write_passages
from rerank.types import Matrix, Passage

N = 23
TEXTS = [f"passage {n} {'with more words ' * (n % 5)}" for n in range(N)]


@pytest.fixture
def job(encoder: Encoder, tmp_path: Path) -> DenseJob:
    """TEXTS in shards of five."""
    list(write_passages(tmp_path, (Passage(f"d{n}", text) for n, text in enumerate(TEXTS))))
    return DenseJob(tmp_path, tmp_path / "parts", encoder.id, "cpu", "float32", shard_rows=5)


def test_encoder_that_changed_under_its_name_is_refused(job, encoder):
    changed = replace(job, encoder=replace(encoder.id, sha256="0" * 64))
    with pytest.raises(ConfigError, match="has changed since the build began"):
        changed.ready(encoder)


def test_vectors_that_are_not_finite_are_refused(job, encoder, monkeypatch):
    def not_finite(self: Encoder, texts: list[str], dtype: str) -> tuple[Matrix, list[bool]]:
        return np.full((len(texts), self.id.dimension), np.nan, dtype=np.float32), [False] * len(texts)

    monkeypatch.setattr(Encoder, "vectors_and_truncation", not_finite)
    with pytest.raises(CheckpointError, match="not finite"):
        encode_shards(job, encoder, workers=1, report=lambda done: None)
    assert not any(file.exists() for file in job.part_files())


def test_only_missing_shards_are_encoded_and_give_the_same_vectors(job, encoder):
    encode_shards(job, encoder, workers=1, report=lambda done: None)
    job.join()
    before = PassageStore(job.folder).vectors.read()
    np.testing.assert_allclose(before, encoder.encode_passages(TEXTS), atol=1e-5)
    lost = job.part_files()[2]
    assert lost.name == "10-15.npz"
    lost.unlink()
    (job.parts / ".10-15.npz.1.writing").touch()  # of a process that was killed
    reports: list[int] = []
    encode_shards(job, encoder, workers=1, report=reports.append)
    assert reports == [N - 5, N]
    assert sorted(job.parts.iterdir()) == sorted(job.part_files())
    job.join()
    assert (PassageStore(job.folder).vectors.read() == before).all()
