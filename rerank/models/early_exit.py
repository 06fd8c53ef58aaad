"""Reads the scores of passages in an early layer of a FIRST model, and computes no layer above it.

A causal LM that shows the identifier behind each passage has read query and passage where the identifier stands. The
probe loss of `train-first` makes one number of the state there, in a layer at two thirds of the depth, the score of the
passage. Jina's reranker v3 (arXiv 2509.25085) reads passages at such positions, too, in its last layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.errors import CheckpointError

#: Types of models with `layers`, a `norm` behind them, and a head whose output is not changed any more.
_KNOWN = ("llama", "mistral", "qwen2", "qwen3")


def score_direction(width: int) -> torch.Tensor:
    """Returns the (width,) direction onto which a state is projected: always the same random one, of about unit length.

    It is not a parameter, so that a checkpoint needs no weights besides those of its model.
    """
    return torch.randn(width, generator=torch.Generator().manual_seed(0)) / width**0.5


def exit_after(model: PreTrainedModel, layer: int) -> None:
    """Drops the layers above a layer, counted from 1. The model's output at a position is then one float32 score.

    Raises:
        CheckpointError: the model has fewer layers, or is of another type than Llama, Mistral, Qwen2 and Qwen3.
    """
    if model.config.model_type not in _KNOWN:
        raise CheckpointError(
            f"early_exit knows models of the types {', '.join(_KNOWN)}, and this one is {model.config.model_type}; "
            "leave early_exit out"
        )
    transformer: Any = model.base_model
    if layer > (layers := len(transformer.layers)):
        raise CheckpointError(
            f"early_exit_layer {layer} exceeds the {layers} layers of the model; leave early_exit out"
        )
    transformer.layers, transformer.norm = transformer.layers[:layer], nn.Identity()
    model.config.num_hidden_layers = layer
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:layer]
    model.set_output_embeddings(ScoreHead(model.config.hidden_size).to(model.device))


class ScoreHead(nn.Module):
    """Projects states onto the direction of the scores, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(score_direction(width)[None], requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, hidden) → (…, 1) float32 scores."""
        with torch.autocast(hidden.device.type, enabled=False):
            return nn.functional.linear(hidden.float(), self.weight)
