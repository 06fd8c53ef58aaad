"""Cuts the head of a causal LM down to the identifiers of passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn


class IdentifierHead(nn.Module):
    """The rows of a vocabulary head that belong to the identifiers, in float32 because bfloat16 logits tie.

    It replaces the head in the model, so that a logit scale or soft cap after the head still applies.
    """

    def __init__(self, head: nn.Module, token_ids: Sequence[int]) -> None:
        super().__init__()
        rows = torch.tensor(list(token_ids))
        weight, bias = cast(torch.Tensor, head.weight), cast(torch.Tensor | None, getattr(head, "bias", None))
        self.weight = nn.Parameter(weight[rows].detach().float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias[rows].detach().float(), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, hidden) → (…, n) float32 logits."""
        with torch.autocast(hidden.device.type, enabled=False):
            return nn.functional.linear(hidden.float(), self.weight, self.bias)
