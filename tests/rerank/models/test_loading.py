"""Loading: dtype by device and precision, and transformers with exactly the tensors of their checkpoint."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from rerank.config import Precision
from rerank.errors import CheckpointError, ConfigError
from rerank.models.checkpoint_files import build_transformer, read_config
from rerank.models.loading import load_causal_lm, load_tokenizer_of, pick_device
from rerank.models.precision import uses_autocast, weights_dtype
from tests.causal_lms import SIZES, write_causal_lm
from tests.random_models import DECODERS, random_model
from tests.small_tokenizers import byte_level

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TOKEN_EMBEDDINGS = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "qwen3", byte_level())


@pytest.mark.parametrize(
    ("device", "precision", "width", "dtype"),
    [
        (CPU, "auto", 4096, torch.float32),
        (CPU, "float32", 4096, torch.float32),
        (CPU, "bfloat16", 4096, torch.float32),
        (CUDA, "auto", 4096, torch.bfloat16),
        (CUDA, "float32", 4096, torch.float32),
        (CUDA, "bfloat16", 4096, torch.bfloat16),
        (CUDA, "bfloat16", 576, torch.float32),
        (CUDA, "auto", 576, torch.float32),
        (CUDA, "auto", 577, torch.bfloat16),
        (CUDA, "auto", 0, torch.bfloat16),
    ],
)
def test_device_precision_and_width_set_the_dtype_of_the_weights(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, precision: Precision, width: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr("rerank.models.precision._MAX_FLOAT32_STREAM_WIDTH", 576)
    assert weights_dtype(device, precision, width) == dtype


@pytest.mark.parametrize(
    ("dtype", "precision", "autocast"),
    [(torch.float32, "bfloat16", True), (torch.float32, "float32", False), (torch.bfloat16, "bfloat16", False)],
)
def test_float32_weights_are_multiplied_in_bfloat16_under_autocast(
    dtype: torch.dtype, precision: Precision, autocast: bool
) -> None:
    assert uses_autocast(random_model(DECODERS["llama"], dtype), precision) == autocast


def test_transformer_is_that_of_the_full_causal_lm(lm: Path) -> None:
    weights = load_file(lm / "model.safetensors")
    built = build_transformer(read_config(lm), weights, weights[TOKEN_EMBEDDINGS], CPU)
    ids = torch.arange(40)[None]
    expected = AutoModelForCausalLM.from_pretrained(lm).eval().base_model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(built(input_ids=ids).last_hidden_state, expected, atol=1e-6, rtol=0)
    assert not any(parameter.is_meta or parameter.requires_grad for parameter in built.parameters())
    assert not any(buffer.is_meta for buffer in built.buffers())


def test_models_with_tied_weights_are_whole_when_two_threads_load_them_at_once(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tied = LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **SIZES)
    AutoModelForCausalLM.from_config(tied).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    before, both = PreTrainedModel.tie_weights, threading.Barrier(2)

    def load(_: int) -> None:
        both.wait()
        model = load_causal_lm(tmp_path, CPU, "float32").model
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(load, range(20)))
    assert PreTrainedModel.tie_weights is before


def test_code_in_a_checkpoint_is_not_run_whatever_the_standard_input_says(
    lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    copy = Path(shutil.copytree(lm, tmp_path / "copy"))
    code = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": code}), encoding="utf-8")
    marker = tmp_path / "ran"
    (copy / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"custom code|own"):
        load_causal_lm(copy, CPU)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["mps", "meta", "xpu", "vulkan", "gpu", "cuda:x", ""])
def test_device_that_models_do_not_run_on_is_refused_with_those_that_they_do(name: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{name}' runs no models here; use auto, cpu, cuda or cuda:N"):
        pick_device(name)


def test_missing_card_is_refused_with_the_number_of_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match=r"'cuda:2' is configured, but torch .* finds 2 CUDA devices"):
        pick_device("cuda:2")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"'cuda' is configured, but torch .* finds no CUDA devices"):
        pick_device("cuda")


def test_causal_lm_without_its_tokenizer_is_refused_with_what_to_add(lm: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(lm, tmp_path / "lm")
    for file in [*folder.glob("tokenizer*"), *folder.glob("chat_template*")]:
        file.unlink()
    for load in (load_causal_lm, lambda path, _: load_tokenizer_of(path)):
        with pytest.raises(CheckpointError, match=r"lm has no tokenizer \(tokenizer\.json.*save_pretrained"):
            load(folder, CPU)
