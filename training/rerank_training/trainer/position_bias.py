"""Inverse propensity weighting: reduces the weight of lists whose best passage is at a position where it often is.

A first stage puts good passages first, so a ranker that always prefers the first one is often right and learns to read
positions instead of passages. Weighting each list by the inverse frequency of its best passage's position removes that
incentive (inverse propensity scoring, Joachims et al., WSDM 2017; for listwise rerankers DebiasFirst).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.losses import RankLoss

#: Number of windows from which the frequencies are estimated.
_MAX_WINDOWS = 20_000
#: Largest weight of a position, as a multiple of a window's mean weight.
_MAX_WEIGHT = 10.0


def position_weights(windows: Dataset[TrainingList], n_windows: int, width: int) -> Tensor:
    """(width,) weight of a window by the position of its best passage; the mean weight of the windows is 1.

    Args:
        n_windows: number of windows.
        width: largest number of passages in a window.
    """
    step = -(-n_windows // _MAX_WINDOWS)
    positions = [_best_position(windows[index]) for index in range(0, n_windows, step)]
    frequency = torch.bincount(torch.tensor(positions), minlength=width) / len(positions)
    # a position that never has the best passage gets the largest weight
    weights = (1 / (frequency * (frequency > 0).sum())).clamp(max=_MAX_WEIGHT)
    return weights / (frequency * weights).sum()


def inverse_propensity_loss(rank_loss: RankLoss, weights: Tensor) -> RankLoss:
    """The ranking loss with each list weighted by the position of its best passage, averaged over all lists.

    Args:
        weights: (width,) as `position_weights` returns them.
    """

    def loss(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
        best = relevance.masked_fill(~mask, -torch.inf).argmax(dim=1)  # the first of equals
        rows = zip(scores.split(1), relevance.split(1), mask.split(1), strict=True)
        per_list = torch.stack([rank_loss(*row) for row in rows])  # (B,)
        return (weights.to(per_list)[best] * per_list).mean()

    return loss


def _best_position(window: TrainingList) -> int:
    return window.relevance.index(max(window.relevance))
