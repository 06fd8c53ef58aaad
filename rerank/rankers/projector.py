"""Encoder space → the language model's input space (PE-Rank, Liu et al. 2025, section 3.1)."""

from __future__ import annotations

import torch
from torch import nn


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
