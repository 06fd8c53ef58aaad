"""nDCG of windows on tensors: the metric on held-out lists during training, and DCG for LambdaRank.

ir-measures, which evaluates runs, accepts integer grades only. The relevance in held-out lists may be scores of a
teacher, which are fractions and may be negative. A test compares both on integer grades.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CUTOFF = 10


def ndcg_at_10(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """(B,) nDCG@10 within each window (Järvelin and Kekäläinen 2002, linear gain); equal scores keep their order.

    If a window has negative relevance, the lowest one has gain 0. A window without any gain, for which all orders are
    equally good, has nDCG 1.

    Args:
        scores, relevance: (B, N).
        mask: (B, N), False at the padding of short windows.
    """
    lowest = relevance.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True).clamp(max=0)
    gains = (relevance - lowest).masked_fill(~mask, 0)
    best = dcg(_sorted_by(gains, gains))
    found = dcg(_sorted_by(scores.masked_fill(~mask, -torch.inf), gains))
    return torch.where(best > 0, found / best.clamp(min=1e-9), 1.0)


def dcg(gains: Tensor) -> Tensor:
    """(B,) discounted cumulative gain of (B, K) gains in rank order: the sum of gain / log2(1 + rank)."""
    ranks = torch.arange(1, gains.shape[-1] + 1, device=gains.device).to(gains.dtype)
    return (gains / torch.log2(1 + ranks)).sum(dim=-1)


def _sorted_by(keys: Tensor, gains: Tensor) -> Tensor:
    """(B, min(N, 10)): the gains of the passages with the highest keys, in falling order of the keys."""
    order = torch.argsort(keys, dim=1, descending=True, stable=True)[:, :_CUTOFF]
    return gains.gather(1, order)
