"""Ranking losses that relevance feedback and training share: weighted RankNet, KL divergence, and their parts.

Every tensor holds B lists of up to N passages. `mask` (B, N) is False at the padding of a list that is shorter than N;
scores at padding are ignored, even nan. `relevance` (B, N) is the teacher: finite floating-point numbers, higher is
better; passages of equal relevance are tied. In formulas s is a score, y a relevance, r a rank, i and j are passages.

A loss is a function of the scores that is prepared for one teacher, because each step of relevance feedback computes it
with the same teacher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

#: (B, N) scores → (B,) losses, one per list.
ListLosses: TypeAlias = Callable[[Tensor], Tensor]


def weighted_ranknet(relevance: Tensor, mask: Tensor) -> ListLosses:
    """RankNet with each pair weighted by 1 / (r_i + r_j), the 1-based ranks of the teacher (FIRST, arXiv 2406.15657).

    It is the mean of log(1 + exp(s_j - s_i)) / (r_i + r_j) over the pairs with y_i > y_j: as in FIRST, the sum divided
    by the number of pairs and not by the sum of the weights. Tied passages have their average rank and form no pair. A
    list without a pair has the loss 0.

    Args:
        relevance, mask: (B, N).
    """
    pairs = preferred_pairs(relevance, mask)
    ranks = average_ranks(relevance, mask)
    weights = pairs / (ranks[:, :, None] + ranks[:, None, :]) / pairs.sum(dim=(1, 2)).clamp(min=1)[:, None, None]
    return lambda scores: (weights * pair_losses(scores.masked_fill(~mask, 0))).sum(dim=(1, 2))


def kl_divergence(relevance: Tensor, mask: Tensor) -> ListLosses:
    """KL(softmax(y) || softmax(s)) in nats, with the teacher's scores y (Hinton et al., arXiv 1503.02531).

    Args:
        relevance, mask: (B, N).
    """
    log_target, target = masked_log_softmax(relevance, mask), masked_softmax(relevance, mask)
    return lambda scores: (target * (log_target - masked_log_softmax(scores, mask))).sum(dim=-1)


def preferred_pairs(relevance: Tensor, mask: Tensor) -> Tensor:
    """(B, N, N) bool: True at (i, j) if both passages exist and i is more relevant than j."""
    return (relevance[:, :, None] > relevance[:, None, :]) & mask[:, :, None] & mask[:, None, :]


def pair_losses(scores: Tensor) -> Tensor:
    """(B, N) scores → (B, N, N) with -log P(i before j) = log(1 + exp(s_j - s_i)) at (i, j)."""
    return functional.softplus(scores[:, None, :] - scores[:, :, None])


def average_ranks(relevance: Tensor, mask: Tensor) -> Tensor:
    """(B, N) 1-based ranks by falling relevance; tied passages have the average of their ranks."""
    better = ((relevance[:, None, :] > relevance[:, :, None]) & mask[:, None, :]).sum(dim=-1)
    equal = ((relevance[:, None, :] == relevance[:, :, None]) & mask[:, None, :]).sum(dim=-1)
    return better + (equal.to(relevance.dtype) + 1) / 2


def masked_softmax(values: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last axis where `mask` is True; 0 elsewhere, also in a row without any True."""
    return _hide(values, mask).softmax(dim=-1).masked_fill(~mask, 0)


def masked_log_softmax(values: Tensor, mask: Tensor) -> Tensor:
    """Logarithm of `masked_softmax` where `mask` is True; 0 elsewhere, so that sums over the axis ignore padding."""
    return _hide(values, mask).log_softmax(dim=-1).masked_fill(~mask, 0)


def _hide(values: Tensor, mask: Tensor) -> Tensor:
    """The values, with the lowest number at padding; -inf would cause nan in a row that has padding only."""
    return values.masked_fill(~mask, torch.finfo(values.dtype).min)
