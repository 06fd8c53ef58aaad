"""Losses as published: values and gradients of FIRST's LambdaRank and ListNet and of PE-Rank's divergence.

The oracles are the formulas, pair by pair and passage by passage in float64; torch only differentiates them.
"""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from rerank_training.first.arguments import FirstArguments
from rerank_training.trainer.losses import RANK_LOSSES, stepwise_kl
from torch import Tensor


def ranked(values: Tensor) -> list[int]:
    return sorted(range(len(values)), key=lambda i: -values[i].item())


def sorted_targets(scores: Tensor, teacher: list[int]) -> list[Tensor]:
    """The k-th largest score for the teacher's k-th passage: the gradient flows through them."""
    falling = [scores[i] for i in ranked(scores)]
    return [falling[teacher.index(i)] for i in range(len(scores))]


def lambdarank(scores: Tensor, teacher: list[int]) -> Tensor:
    targets, place = sorted_targets(scores, teacher), ranked(scores)
    gains = [2 ** target.clamp(min=0) - 1 for target in targets]
    ideal = sorted(gains, key=lambda gain: -gain.item())
    max_dcg = sum(gain / torch.log2(torch.tensor(1.0 + rank)) for rank, gain in enumerate(ideal, 1))
    terms = []
    for i, j in permutations(range(len(scores)), 2):
        if targets[i] > targets[j]:
            distance = torch.tensor(float(abs(place.index(i) - place.index(j))), dtype=torch.float64)
            discount = 1 / torch.log2(1 + distance) - 1 / torch.log2(2 + distance)
            weight = discount * (gains[i] - gains[j]).abs() / max_dcg
            terms.append(-torch.log2(torch.sigmoid(scores[i] - scores[j]) ** weight))
    return torch.stack(terms).mean()


def listnet(scores: Tensor, teacher: list[int]) -> Tensor:
    targets = torch.stack(sorted_targets(scores, teacher))
    return -(targets.exp() / targets.exp().sum() * torch.log(scores.exp() / scores.exp().sum() + 1e-10)).sum()


@pytest.mark.parametrize(("name", "oracle"), [("lambdarank-first", lambdarank), ("listnet-first", listnet)])
@pytest.mark.parametrize("n", [2, 5, 20])
def test_losses_of_first(name: str, oracle: object, n: int) -> None:
    draw = torch.Generator().manual_seed(n)
    for _ in range(3):
        scores = 2 * torch.randn(n, generator=draw, dtype=torch.float64) + 2
        teacher = torch.randperm(n, generator=draw).tolist()
        relevance = -torch.tensor([[float(teacher.index(i)) for i in range(n)]])
        expected = oracle(own := scores.clone().requires_grad_(), teacher)  # type: ignore[operator]
        found = RANK_LOSSES[name](ours := scores[None].clone().requires_grad_(), relevance, torch.ones(1, n).bool())
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        gradients = torch.autograd.grad(found, ours)[0][0], torch.autograd.grad(expected, own)[0]
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_divergence_of_pe_rank_is_the_sum_over_the_ranks_and_trains_the_teacher_too() -> None:
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
def test_weights_beside_the_language_model_are_those_of_first(loss: str, weight: float) -> None:
    arguments = FirstArguments(lists="lists.jsonl", base="base", rank_loss=loss)
    assert arguments.joint_rank_weight == weight
    assert FirstArguments(lists="lists.jsonl", base="base", rank_loss=loss, rank_weight=2.5).joint_rank_weight == 2.5
