"""Loading: dtype by device and precision, and transformers with exactly the tensors of their checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rerank.config import Precision
from rerank.errors import CheckpointError
from rerank.models.checkpoint_files import build_transformer, read_config, read_weights
from rerank.models.loading import load_causal_lm
from rerank.models.precision import uses_autocast, weights_dtype
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TOKEN_EMBEDDINGS = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "qwen3", byte_level())


@pytest.mark.parametrize(
    ("device", "precision", "dtype", "autocast"),
    [
        (CPU, "auto", torch.float32, False),
        (CPU, "float32", torch.float32, False),
        (CPU, "bfloat16", torch.float32, True),
        (CUDA, "auto", torch.bfloat16, False),
        (CUDA, "float32", torch.float32, False),
        (CUDA, "bfloat16", torch.bfloat16, False),
    ],
)
def test_precision_sets_dtype_and_autocast(
    device: torch.device, precision: Precision, dtype: torch.dtype, autocast: bool
) -> None:
    assert (weights_dtype(device, precision), uses_autocast(device, precision)) == (dtype, autocast)


def test_loaded_causal_lm_tells_what_it_shall_compute_in(lm: Path) -> None:
    loaded = load_causal_lm(lm, CPU, "bfloat16")
    assert (loaded.model.dtype, loaded.precision) == (torch.float32, "bfloat16")
    assert load_causal_lm(lm, CPU).precision == "float32"


def test_transformer_is_that_of_the_full_causal_lm(lm: Path) -> None:
    weights = load_file(lm / "model.safetensors")
    built = build_transformer(read_config(lm), weights, weights[TOKEN_EMBEDDINGS], CPU)
    ids = torch.arange(40)[None]
    expected = AutoModelForCausalLM.from_pretrained(lm).eval().base_model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(built(input_ids=ids).last_hidden_state, expected, atol=1e-6, rtol=0)
    assert not any(parameter.is_meta or parameter.requires_grad for parameter in built.parameters())
    assert not any(buffer.is_meta for buffer in built.buffers())


def test_building_a_transformer_draws_no_random_numbers(lm: Path) -> None:
    weights = load_file(lm / "model.safetensors")
    before = torch.get_rng_state()
    build_transformer(read_config(lm), weights, weights[TOKEN_EMBEDDINGS], CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_transformer_copies_the_tensors_of_its_checkpoint(lm: Path) -> None:
    """The alignment of a mapped file would change the last bits of sums."""
    weights = load_file(lm / "model.safetensors")
    built = build_transformer(read_config(lm), weights, weights[TOKEN_EMBEDDINGS], CPU)
    assert {tensor.data_ptr() for tensor in weights.values()}.isdisjoint(p.data_ptr() for p in built.parameters())


@pytest.mark.parametrize("missing", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_checkpoint_without_a_tensor_is_refused(lm: Path, missing: str) -> None:
    weights = load_file(lm / "model.safetensors")
    token_embeddings = weights[TOKEN_EMBEDDINGS]
    del weights[missing]
    with pytest.raises(CheckpointError, match=r"does not fit its config\.json"):
        build_transformer(read_config(lm), weights, token_embeddings, CPU)


@pytest.mark.parametrize("name", ["no-such-model", "someone/no-such-model", "/missing"])
def test_name_of_a_model_on_the_hub_is_not_looked_up(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"there is no folder {name}; give the folder of a checkpoint"):
        load_causal_lm(Path(name), CPU)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/gone"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="there is no folder /gone"):
        load_causal_lm(tmp_path, CPU)


@pytest.mark.parametrize("size", [0, 5, 5000])
def test_truncated_weights_are_refused(lm: Path, tmp_path: Path, size: int) -> None:
    copy = Path(shutil.copytree(lm, tmp_path / "copy"))
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=f"{copy}/model.safetensors cannot be read: "):
        load_causal_lm(copy, CPU)


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


def test_causal_lm_with_a_missing_weight_is_refused_by_name(tmp_path: Path) -> None:
    """transformers would draw it at random, and log it."""
    folder = write_causal_lm(tmp_path / "lm", "qwen3", byte_level())
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights | {"model.layers.9.norm": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    message = r"without model\.layers\.1\.mlp\.up_proj\.weight; with unknown model\.layers\.9\.norm"
    with pytest.raises(CheckpointError, match=message):
        load_causal_lm(folder, CPU)


def test_incomplete_adapter_is_refused(tmp_path: Path) -> None:
    base = write_causal_lm(tmp_path / "lm", "qwen3", byte_level())
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(path)
    save_file(dict(list(weights.items())[1:]), path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"adapter.* is incomplete: Found missing adapter keys.*lora_A"):
        load_causal_lm(tmp_path / "adapter", CPU)


def test_torch_file_is_read_without_running_code(tmp_path: Path, lm: Path) -> None:
    weights = load_file(lm / "model.safetensors")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert read_weights(tmp_path).keys() == weights.keys()
    torch.save({"weight": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not a dictionary of tensors"):
        read_weights(tmp_path)
