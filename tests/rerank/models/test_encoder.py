"""The encoder: unit vectors, bitwise equal for equal texts, safe to share between threads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from rerank.errors import CheckpointError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from tests.pe_checkpoints import change_config


def test_default_encoder_is_the_published_one(encoder: Encoder) -> None:
    assert (encoder.id.name, encoder.id.dimension, encoder.id.max_tokens) == (DEFAULT_ENCODER, 384, 256)
    assert encoder.id.sha256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_equal_texts_get_bitwise_equal_vectors(encoder: Encoder) -> None:
    texts = ["tides", *(f"filler number {n} of some length" * (n % 5) for n in range(60)), "tides"]
    vectors = encoder.encode_passages(texts)
    assert np.array_equal(vectors[0], vectors[-1])


def test_threads_may_share_the_encoder(encoder: Encoder) -> None:
    """A fast tokenizer raises "Already borrowed" when two threads configure it."""
    texts = [f"thread text {n}" for n in range(8)]
    expected = encoder.encode_passages(texts)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(encoder.encode_passages, texts) for _ in range(12)]
        checks = [pool.submit(encoder.is_truncated, texts) for _ in range(12)]
        assert all(np.allclose(run.result(), expected, atol=1e-6) for run in runs)
        assert all(check.result() == [False] * 8 for check in checks)


def test_end_of_a_long_text_is_neither_tokenized_nor_changes_its_vector(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A passage of 10 MB took 39 s for a vector of its first 256 tokens."""
    texts = ["a flea lives a year " * 400, "short"]
    expected, read = (encoder.encode_passages(texts), encoder.encode_queries(texts)), list[int]()
    count, encode = Encoder._count, SentenceTransformer.encode

    def watched(self: Encoder, texts: Sequence[str]) -> list[int]:
        read.extend(map(len, texts))
        return count(self, texts)

    def watched_encode(self: SentenceTransformer, inputs: list[str], **options: Any) -> Any:
        read.extend(map(len, inputs))
        return encode(self, inputs, **options)

    monkeypatch.setattr(Encoder, "_count", watched)
    monkeypatch.setattr(SentenceTransformer, "encode", watched_encode)
    longer = [texts[0] * 100, "short"]
    for found, of_side in zip((encoder.encode_passages(longer), encoder.encode_queries(longer)), expected, strict=True):
        assert np.array_equal(found, of_side)
    assert encoder.is_truncated(longer) == [True, False]
    assert max(read) < 10_000 < len(longer[0])


def test_token_ends_do_not_wait_for_a_batch_of_vectors(encoder: Encoder) -> None:
    encoder.token_ends("the copy of the tokenizer is made once")
    with ThreadPoolExecutor(1) as thread, encoder._lock:
        assert thread.submit(encoder.token_ends, "A flea lives.").result(timeout=5).tolist() == [1, 6, 12, 13]


@pytest.fixture
def copied(encoder: Encoder, tmp_path: Path) -> Path:
    """A folder with the files of the default encoder."""
    return Path(shutil.copytree(encoder.folder, tmp_path / "copied"))


def test_folder_is_known_by_its_path_its_name_and_the_one_in_its_config(copied: Path) -> None:
    change_config(copied, _name_or_path="publisher/encoder")
    encoder = Encoder(str(copied), "cpu")
    assert encoder.names == {str(copied), "copied", "publisher/encoder"}


def test_missing_and_unknown_weights_are_named(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    gated = {f"encoder.layer.{n}.mlp.gated.weight": torch.ones(n + 1) for n in range(6)}
    kept = {name: tensor for name, tensor in weights.items() if name != "encoder.layer.3.output.dense.weight"}
    save_file(kept | gated, copied / "model.safetensors", metadata={"format": "pt"})
    message = (
        r"copied does not fit its config\.json: weights without encoder\.layer\.3\.output\.dense\.weight; with unknown "
        r"encoder\.layer\.0\.mlp\.gated\.weight, .* and 1 more\. Download it again"
    )
    with pytest.raises(CheckpointError, match=message):
        Encoder(str(copied), "cpu")
