"""Small random PE-Rank checkpoints in the published layout: a complete causal LM with a tokenizer and a projector."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from rerank.models.encoder import Encoder
from rerank.types import Passage, Query, Window
from tests.causal_lms import SIZES, write_causal_lm
from tests.small_encoder import change_json
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
        encoder_name=encoder.id.name,
        encoder_pooling="mean",
        projector_type="mlp2x_gelu",
        embedding_size=encoder.id.dimension,
    )
    if template is not None:
        (folder / "prompt.yaml").write_text(template, encoding="utf-8")
        change_config(folder, template="prompt.yaml")
    projector = random_projector(encoder.id.dimension, sizes.get("hidden_size", SIZES["hidden_size"]))  # type: ignore[arg-type]
    weights = {f"model.projector.{name}": tensor for name, tensor in projector.items()}
    change_weights(folder, weights | {"model.encoder.encoder.embeddings.weight": torch.zeros(3)})
    return folder


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
