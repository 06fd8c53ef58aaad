"""Unbiased by position: lists whose best passage stands where best passages often stand count less.

A first stage puts good passages first, so a ranker that always names the first is often right and learns to look at the
place. Weighting by the inverse of how often the best passage stands at a place takes that reward away (inverse
propensity scoring, Joachims et al., WSDM 2017; for listwise rerankers DebiasFirst).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from rerank_training.data import TrainingList
from rerank_training.losses import RankLoss

#: How many windows are counted.
_MOST_WINDOWS = 20_000
#: A rare place counts this many times more than a window does on average, at most.
_MOST_WEIGHT = 10.0


def place_weights(windows: Dataset[TrainingList], n_windows: int, width: int) -> Tensor:
    """(width,) weight of a window whose best passage stands at each place; their mean over the windows is 1.

    Args:
        n_windows: how many windows there are.
        width: the most passages of a window.
    """
    step = -(-n_windows // _MOST_WINDOWS)
    best = [_best_place(windows[index]) for index in range(0, n_windows, step)]
    share = torch.bincount(torch.tensor(best), minlength=width) / len(best)
    weights = (1 / (share * (share > 0).sum())).clamp(max=_MOST_WEIGHT)  # a place that never was best: the most
    return weights / (share * weights).sum()


def inversely_weighted(rank_loss: RankLoss, weights: Tensor) -> RankLoss:
    """The rank loss with each list weighted by the place of its best passage; the mean is over all lists."""

    def loss(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
        best = relevance.masked_fill(~mask, -torch.inf).argmax(dim=1)  # of equals the first
        rows = zip(scores.split(1), relevance.split(1), mask.split(1), strict=True)
        per_list = torch.stack([rank_loss(*row) for row in rows])  # (B,)
        return (weights.to(per_list)[best] * per_list).mean()

    return loss


def _best_place(window: TrainingList) -> int:
    return window.relevance.index(max(window.relevance))
