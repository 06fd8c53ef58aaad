"""Projectors from the encoder's vectors to the language model's inputs (PE-Rank, Liu et al. 2025, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from rerank.errors import CheckpointError


class ResidualProjector(nn.Module):
    """(N, D) → (N, D): x + W₂ gelu(W₁ x + b₁) + b₂, a two-layer perceptron with a residual connection.

    W₂ and b₂ are initialised to 0, so that it starts as the identity and an untrained model reads the encoder's own
    vectors. Encoder and language model must have the same width.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.up = nn.Linear(dimension, dimension)
        self.down = nn.Linear(dimension, dimension)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = self.down(nn.functional.gelu(self.up(vectors)))
        return vectors + branch


def _perceptron(encoder: int, model: int) -> nn.Module:
    """(N, encoder) → (N, model): W₂ gelu(W₁ x + b₁) + b₂, as in the paper."""
    return nn.Sequential(nn.Linear(encoder, model), nn.GELU(), nn.Linear(model, model))


#: projector_type → a constructor that takes the widths of encoder and model, and the names of first and last matrix.
_TYPES: dict[str, tuple[Callable[[int, int], nn.Module], str, str]] = {
    "residual_mlp2x_gelu": (lambda encoder, model: ResidualProjector(model), "up.weight", "down.weight"),
    "mlp2x_gelu": (_perceptron, "0.weight", "2.weight"),
    "linear": (nn.Linear, "weight", "weight"),
}


def make_projector(projector_type: str, encoder_width: int, model_width: int) -> nn.Module:
    """An untrained projector.

    Raises:
        CheckpointError: the projector_type is unknown.
    """
    if projector_type not in _TYPES:
        raise CheckpointError(f"unknown projector_type {projector_type!r}; known types are {', '.join(_TYPES)}")
    return _TYPES[projector_type][0](encoder_width, model_width)


def load_projector(
    projector_type: str, weights: Mapping[str, torch.Tensor], encoder_width: int, model_width: int
) -> nn.Module:
    """The projector with the given weights, in float32, ready for inference.

    Args:
        projector_type: the setting of this name in the checkpoint's config.json.
        weights: its tensors, by their names inside the projector.

    Raises:
        CheckpointError: the type is unknown, or the weights belong to another type or to other widths.
    """
    projector = make_projector(projector_type, encoder_width, model_width)
    _, first, last = _TYPES[projector_type]
    if first in weights and last in weights:
        widths = weights[first].shape[1], weights[last].shape[0]
        if widths != (encoder_width, model_width):
            raise CheckpointError(
                f"the projector maps width {widths[0]} to {widths[1]}, but the encoder's vectors have width "
                f"{encoder_width} and the model reads {model_width}; use the encoder that it was trained for"
            )
    try:
        projector.load_state_dict(dict(weights), strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"the projector does not fit its projector_type {projector_type!r}: {error}") from error
    return projector.eval().requires_grad_(False)
