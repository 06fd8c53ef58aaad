"""Projectors: the residual one starts as the identity and can learn, the perceptron is that of the paper."""

from __future__ import annotations

import torch

from rerank.models.projector import ResidualProjector, load_projector


def test_untrained_projector_is_the_identity() -> None:
    vectors = torch.randn(7, 16)
    assert torch.equal(ResidualProjector(16)(vectors), vectors)


def test_perceptron_is_the_formula_of_the_paper() -> None:
    """W₂ gelu(W₁ x + b₁) + b₂ from the encoder's width to the model's."""
    first, second = torch.nn.Linear(6, 4), torch.nn.Linear(4, 4)
    weights = {f"0.{name}": tensor for name, tensor in first.state_dict().items()}
    weights |= {f"2.{name}": tensor for name, tensor in second.state_dict().items()}
    vectors = torch.randn(7, 6)
    expected = second(torch.nn.functional.gelu(first(vectors)))
    torch.testing.assert_close(load_projector("mlp2x_gelu", weights, 6, 4)(vectors), expected)
