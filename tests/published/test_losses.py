"""Losses as published: PE-Rank's divergence by its formula, which torch only differentiates, and FIRST's weights."""

from dataclasses import replace

import pytest
import torch
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.objective import joint_rank_weight
from rerank_training.trainer.losses import stepwise_kl


def test_divergence_of_pe_rank_is_the_sum_over_the_ranks_and_trains_the_teacher_too():
    draw = torch.Generator().manual_seed(0)
    sizes, orders = (4, 20), [torch.randperm(n, generator=draw).tolist() for n in (4, 20)]
    scores, teacher = (torch.randn(2, 20, 20, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(2))
    left = torch.zeros(2, 20, 20, dtype=torch.bool)
    total = torch.zeros((), dtype=torch.float64)
    for row, (n, order) in enumerate(zip(sizes, orders, strict=True)):
        for rank in range(n):
            left[row, rank, order[rank:]] = True
            target = teacher[row, rank, order[rank:]].softmax(0)
            total = total + (target * (target / scores[row, rank, order[rank:]].softmax(0)).log()).sum()
    found = stepwise_kl(scores, teacher, left)
    torch.testing.assert_close(found, total / 2, atol=1e-5, rtol=1e-5)
    for ours, expected in zip(
        torch.autograd.grad(found, (scores, teacher)), torch.autograd.grad(total / 2, (scores, teacher)), strict=True
    ):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
        assert ours.abs().sum() > 0


@pytest.mark.parametrize(
    ("loss", "weight"), [("weighted-ranknet", 10.0), ("lambdarank-first", 1.0), ("listnet-first", 0.1)]
)
def test_weights_next_to_the_language_model_equal_first(loss, weight):
    arguments = FirstArguments(lists="lists.jsonl", base="base", rank_loss=loss)
    assert joint_rank_weight(arguments) == weight
    assert joint_rank_weight(replace(arguments, rank_weight=2.5)) == 2.5
