"""The projector starts as the identity and learns from there."""

from __future__ import annotations

import torch

from rerank.rankers.projector import ResidualProjector


def test_untrained_projector_is_the_identity() -> None:
    vectors = torch.randn(7, 16)
    assert torch.equal(ResidualProjector(16)(vectors), vectors)


def test_gradient_reaches_the_zero_layer() -> None:
    """A zero layer behind a zero layer would never learn."""
    projector = ResidualProjector(16)
    projector(torch.randn(7, 16)).square().sum().backward()
    assert projector.down.weight.grad is not None
    assert projector.down.weight.grad.abs().sum() > 0


def test_each_row_is_projected_by_itself() -> None:
    projector = ResidualProjector(16)
    torch.nn.init.normal_(projector.down.weight)
    vectors = torch.randn(7, 16)
    torch.testing.assert_close(projector(vectors)[3], projector(vectors[3:4])[0])
