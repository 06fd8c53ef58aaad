"""nDCG of windows during training, on tensors. Runs are measured by ir-measures, in `eval`."""

from __future__ import annotations

import torch
from torch import Tensor

_CUTOFF = 10


def ndcg_at_10(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """(B,) nDCG@10 within each window (Järvelin and Kekäläinen 2002, linear gain); equal scores keep their order.

    Where a teacher's scores are negative, gains count from the window's lowest. A window that no order can be wrong
    about has 1.

    Args:
        scores, relevance: (B, N).
        mask: (B, N), False behind short windows.
    """
    lowest = relevance.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True).clamp(max=0)
    gain = (relevance - lowest).masked_fill(~mask, 0)
    best = _dcg(gain, gain)
    return torch.where(best > 0, _dcg(scores.masked_fill(~mask, -torch.inf), gain) / best.clamp(min=1e-9), 1.0)


def _dcg(by: Tensor, gain: Tensor) -> Tensor:
    order = torch.argsort(by, dim=1, descending=True, stable=True)[:, :_CUTOFF]
    ranks = torch.arange(2, order.shape[1] + 2, device=gain.device)
    return (gain.gather(1, order) / torch.log2(ranks)).sum(dim=1)
