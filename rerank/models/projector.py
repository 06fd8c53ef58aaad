"""Encoder space → the language model's input space (PE-Rank, Liu et al. 2025, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from rerank.errors import CheckpointError


class ResidualProjector(nn.Module):
    """(N, D) → (N, D): x + W₂ gelu(W₁ x + b₁) + b₂, a two-layer perceptron beside the identity.

    With W₂ = 0 and b₂ = 0 it is the identity, so that an untrained model sees the encoder's own space. Encoder and
    language model must have the same width.
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
    """(N, encoder) → (N, model): W₂ gelu(W₁ x + b₁) + b₂, as the paper has it."""
    return nn.Sequential(nn.Linear(encoder, model), nn.GELU(), nn.Linear(model, model))


#: projector_type → how to make one for the widths of encoder and model, and its first and last matrix.
_KINDS: dict[str, tuple[Callable[[int, int], nn.Module], str, str]] = {
    "residual_mlp2x_gelu": (lambda encoder, model: ResidualProjector(model), "up.weight", "down.weight"),
    "mlp2x_gelu": (_perceptron, "0.weight", "2.weight"),
    "linear": (nn.Linear, "weight", "weight"),
}


def make_projector(kind: str, encoder_width: int, model_width: int) -> nn.Module:
    """An untrained one, for training. Raises: CheckpointError when there is no such kind."""
    if kind not in _KINDS:
        *others, last = _KINDS
        raise CheckpointError(f"projector_type {kind!r} is not {', '.join(others)} or {last}")
    return _KINDS[kind][0](encoder_width, model_width)


def load_projector(kind: str, weights: Mapping[str, torch.Tensor], encoder_width: int, model_width: int) -> nn.Module:
    """The projector with these weights, in float32, ready for inference.

    Args:
        kind: `projector_type` of the checkpoint.
        weights: its tensors, by their names inside the projector.

    Raises:
        CheckpointError: no such kind, or weights of another kind or for other widths.
    """
    projector = make_projector(kind, encoder_width, model_width)
    _, first, end = _KINDS[kind]
    if first in weights and end in weights:
        widths = weights[first].shape[1], weights[end].shape[0]
        if widths != (encoder_width, model_width):
            raise CheckpointError(
                f"the projector maps width {widths[0]} to {widths[1]}, but the encoder's vectors have width "
                f"{encoder_width} and the model reads {model_width}; use the encoder that it was trained for"
            )
    try:
        projector.load_state_dict(dict(weights), strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"the projector does not fit its projector_type {kind!r}: {error}") from error
    return projector.eval().requires_grad_(False)
