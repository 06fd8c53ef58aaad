"""Random models of the benchmarks, in the sizes of published ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class LlamaSize:
    """Size of a Llama. By default it has 12.4M parameters without its 32,000 token embeddings."""

    hidden: int = 384
    mlp: int = 1024
    layers: int = 7
    heads: int = 6
    key_heads: int = 6
    vocabulary: int = 32_000


TINY = LlamaSize(64, 128, 2, 2, 2)
QWEN3_0_6B = LlamaSize(1024, 3072, 28, 16, 8, 151_936)
SMOLLM2_135M = LlamaSize(576, 1536, 30, 9, 3, 49_152)
MISTRAL_7B = LlamaSize(4096, 14_336, 32, 32, 8)


def llama(size: LlamaSize, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A random Llama without an end-of-text token, so that it generates as many tokens as it may."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        max_position_embeddings=8192,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device(device):
        model: LlamaForCausalLM = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def save_with_projector(
    model: LlamaForCausalLM, folder: Path, encoder_name: str, dimension: int, **options: Any
) -> None:
    """Saves a causal LM with a random projector for the vectors of an encoder, without a tokenizer.

    Args:
        options: of `save_pretrained`.
    """
    for key, value in {"encoder_name": encoder_name, "projector_type": "linear"}.items():
        setattr(model.config, key, value)
    model.save_pretrained(folder, **options)
    projector = {
        "projector.weight": torch.randn(model.config.hidden_size, dimension) * 0.5,
        "projector.bias": torch.zeros(model.config.hidden_size),
    }
    torch.save(projector, folder / "projector.bin")
