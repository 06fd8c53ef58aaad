"""Language model loss: against transformers, and without labels."""

from __future__ import annotations

import pytest
import torch
from rerank_training.trainer.losses import language_model_loss
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss


def tokens(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 11, generator=generator, dtype=torch.float64).to(dtype)
    return logits, torch.tensor([[4, -100, 3, 7, -100], [-100, -100, -100, 10, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_is_that_of_transformers(dtype: torch.dtype) -> None:
    logits, labels = tokens(dtype)
    value = language_model_loss(logits, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, ForCausalLMLoss(logits, labels, vocab_size=11))


@pytest.mark.parametrize("length", [0, 1, 5])
def test_no_labels_give_a_zero_with_a_gradient(length: int) -> None:
    logits = torch.randn(2, length, 11, requires_grad=True)
    value = language_model_loss(logits, torch.full((2, length), -100))
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()
