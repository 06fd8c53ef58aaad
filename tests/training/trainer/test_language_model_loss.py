"""Language model loss: against transformers, by hand, and without labels."""

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


def test_logits_predict_the_next_label() -> None:
    logits, labels = tokens()
    expected = -sum(logits[i, t].log_softmax(-1)[labels[i, t + 1]] for i, t in [(0, 1), (0, 2), (1, 2), (1, 3)]) / 4
    torch.testing.assert_close(language_model_loss(logits, labels), expected)


def test_gradient_is_that_of_the_value() -> None:
    logits, labels = tokens()
    assert torch.autograd.gradcheck(lambda given: language_model_loss(given, labels), logits.requires_grad_())


@pytest.mark.parametrize("length", [0, 1, 5])
def test_no_labels_give_a_zero_with_a_gradient(length: int) -> None:
    logits = torch.randn(2, length, 11, requires_grad=True)
    value = language_model_loss(logits, torch.full((2, length), -100))
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_extreme_logits_stay_finite() -> None:
    logits, labels = tokens(torch.float32)
    assert language_model_loss(1e4 * logits, labels).isfinite()
