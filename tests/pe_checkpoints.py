"""Small random PE-Rank checkpoints in the published layout: a complete causal LM with a tokenizer and a projector."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from rerank.models.encoder import Encoder
from rerank.types import Passage, Query, Window
from tests.causal_lms import SIZES, write_causal_lm
from tests.json_files import change_json
from tests.small_tokenizers import metaspace

#: Short, so that many windows can be generated in a test.
SHORT = "{prefix: '{query} ', body: '{rank} [{candidate}]', suffix: 'rank {num}'}"
#: Shows text and the vector.
WITH_TEXT = "{prefix: '{query} ', body: '{rank} [{candidate}] {text}. ', suffix: 'rank {num}'}"


def published_tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = metaspace("instruct")
    tokenizer.add_tokens(["<PLACEHOLDER>", "<RANK>"], special_tokens=True)
    return tokenizer


def random_projector(encoder_width: int, model_width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """An mlp2x_gelu projector whose output has about the norm of the random models' token embeddings."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "0.weight": torch.randn(model_width, encoder_width, generator=draw),
        "0.bias": 0.1 * torch.randn(model_width, generator=draw),
        "2.weight": 0.05 * torch.randn(model_width, model_width, generator=draw),
        "2.bias": 0.05 * torch.randn(model_width, generator=draw),
    }


def write_published(
    folder: Path, encoder: Encoder, architecture: str = "mistral", template: str | None = None, **sizes: Any
) -> Path:
    """Writes a checkpoint with the projector and (ignored) encoder weights among its weights."""
    write_causal_lm(folder, architecture, published_tokenizer(), **sizes)
    change_config(
        folder,
        model_type=f"embed_{architecture}",
        architectures=[f"Embed{architecture.capitalize()}ForCausalLM"],
        **published_settings(encoder),
    )
    if template is not None:
        (folder / "prompt.yaml").write_text(template, encoding="utf-8")
        change_config(folder, template="prompt.yaml")
    projector = random_projector(encoder.id.dimension, sizes.get("hidden_size", SIZES["hidden_size"]))  # type: ignore[arg-type]
    weights = {f"model.projector.{name}": tensor for name, tensor in projector.items()}
    change_weights(folder, weights | {"model.encoder.encoder.embeddings.weight": torch.zeros(3)})
    return folder


def write_aligned(folder: Path, base: Path, encoder: Encoder) -> Path:
    """Writes what the alignment by PE-Rank's authors leaves: config.json, which names the base, and projector.bin."""
    folder.mkdir(parents=True)
    shutil.copyfile(base / "config.json", folder / "config.json")
    change_config(
        folder, **published_settings(encoder), model_type="embed_mistral", _name_or_path=str(base), freeze_backbone=True
    )
    projector = random_projector(encoder.id.dimension, SIZES["hidden_size"])  # type: ignore[arg-type]
    torch.save({f"model.projector.{name}": tensor for name, tensor in projector.items()}, folder / "projector.bin")
    return folder


def write_adapted(folder: Path, base: Path, encoder: Encoder) -> Path:
    """Writes what the LoRA training of PE-Rank's authors leaves over a base: an adapter, and two files in its names."""
    write_aligned(folder, base, encoder)
    change_config(folder, freeze_backbone=False)
    model = AutoModelForCausalLM.from_pretrained(base)
    change_config(folder, vocab_size=model.config.vocab_size + 2)
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    torch.manual_seed(0)
    get_peft_model(model, lora).save_pretrained(folder)
    projector = torch.load(folder / "projector.bin")
    projector = {f"base_model.model.{name}": tensor for name, tensor in projector.items()}
    torch.save(projector, folder / "projector.bin")
    head = {"base_model.model.lm_head.weight": torch.ones(model.config.vocab_size + 2, SIZES["hidden_size"])}  # type: ignore[arg-type]
    torch.save(projector | head, folder / "non_lora_trainables.bin")
    return folder


def published_settings(encoder: Encoder) -> dict[str, Any]:
    """The keys of a published config.json in addition to the language model's."""
    return {
        "encoder_name": encoder.id.name,
        "encoder_pooling": "mean",
        "projector_type": "mlp2x_gelu",
        "embedding_size": encoder.id.dimension,
    }


def write_perturbed(folder: Path, zero_init: Path) -> Path:
    """Writes a checkpoint in our layout with noise on every weight, so that each of them has an effect."""
    shutil.copytree(zero_init, folder)
    draw = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    change_weights(folder, {name: t + 0.02 * torch.randn(t.shape, generator=draw) for name, t in weights.items()})
    return folder


def change_config(folder: Path, **settings: Any) -> None:
    change_json(folder / "config.json", **settings)


def change_weights(folder: Path, added: dict[str, torch.Tensor], without: str = "no such name") -> None:
    """Adds tensors to model.safetensors and drops those whose name holds `without`."""
    path = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if without not in name}
    save_file(kept | added, path, metadata={"format": "pt"})


def vector_window(n: int, seed: int, width: int = 384, text: str = "a query") -> Window:
    """A window of random unit vectors, with texts that hold their place."""
    rows = np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return Window(
        Query(text), tuple(Passage(f"d{place}", f"text {place}", vector=row) for place, row in enumerate(rows))
    )
