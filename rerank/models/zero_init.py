"""Writes the PE-Rank checkpoint that training starts from: it ranks by the encoder's cosine.

The last matrix of every residual branch of the transformer (`o_proj`, `down_proj`) and of the projector is zero, so
that each position leaves the model as it entered, up to the final norm. The last position is the query's vector, whose
inner products with the passages' vectors give the same order as their cosines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModel, LlamaConfig

from rerank.models.encoder import Encoder
from rerank.models.projector import ResidualProjector
from rerank.util.files import atomic_folder


def write_zero_init_checkpoint(encoder: Encoder, out: Path, seed: int = 0) -> None:
    """Writes a Llama of the encoder's width to the folder `out`, without token embeddings, which are the encoder's.

    Args:
        seed: of the random weights that are not zero.

    Raises:
        ConfigError: `out` exists already.
    """
    config = _config(encoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = AutoModel.from_config(config, dtype=torch.float32)
        projector = ResidualProjector(encoder.id.dimension)
    for layer in transformer.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    weights = {
        f"model.{name}": tensor for name, tensor in transformer.state_dict().items() if "embed_tokens" not in name
    }
    weights |= {f"projector.{name}": tensor for name, tensor in projector.state_dict().items()}
    with atomic_folder(out) as folder:
        config.save_pretrained(folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _config(encoder: Encoder) -> LlamaConfig:
    vocabulary, hidden = encoder.token_embeddings.shape
    settings: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 8 * hidden // 3,
        "num_hidden_layers": 3,
        "num_attention_heads": max(1, hidden // 64),
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "encoder_name": encoder.id.name,
        "encoder_sha256": encoder.id.vectors_sha256,
        "projector_type": "residual_mlp2x_gelu",
        "template": "pe_rank",
    }
    return LlamaConfig(**settings)
