"""Computes attention inside each of many sequences that are packed into one row.

Packing needs neither padding nor a mask: the lengths of the sequences travel as the keyword argument `pack` of the
model's forward to every attention layer, where each sequence attends to itself only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rerank.models.bfloat16_attention import attend_in_blocks

#: The name under which `packed_attention` is registered with transformers.
PACKED_ATTENTION = "packed"

_VARLEN_DTYPES = (torch.float16, torch.bfloat16)
#: Since torch 2.12 grouped-query attention must be announced to `varlen_attn`; before, the argument does not exist.
_VARLEN_KNOWS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters


class Pack:
    """Tells attention layers where the sequences of a packed row are, and counts the layers that have read it.

    Attributes:
        outputs_at: (P,) index in the row of the positions that have outputs: the last one of each sequence, or those of
            `read_at`.
        ends_only: the outputs are at the last positions.
        position_ids: (1, T) position ids, which start from 0 in every sequence.
        cu_seqlens: (B + 1,) int32 cumulative lengths, as FlashAttention takes them.
        max_length: length of the longest sequence.
        total_tokens: T, the length of the row.
        calls: number of attention layers that have read it.
        windowed_calls: number of those that used a sliding window.
        on_call: called by each of them.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._boundaries = [0, *accumulate(lengths)]
        self.outputs_at = torch.tensor(self._boundaries[1:], device=device) - 1
        self.ends_only = True
        self.position_ids = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
        self.cu_seqlens = torch.tensor(self._boundaries, dtype=torch.int32, device=device)
        self.max_length = max(lengths)
        self.total_tokens = self._boundaries[-1]
        self.calls = 0
        self.windowed_calls = 0
        self.on_call: Callable[[], None] = lambda: None

    def read_at(self, positions: Sequence[torch.Tensor]) -> None:
        """Moves the outputs to some positions of each sequence, which are counted from its start."""
        starts = self._boundaries[:-1]
        self.outputs_at = torch.cat([start + some for start, some in zip(starts, positions, strict=True)])
        self.ends_only = False

    def slices(self) -> Iterator[slice]:
        """Yields the slice of the row that holds each sequence."""
        return (slice(start, end) for start, end in pairwise(self._boundaries))


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    pack: Pack | None = None,
    last_only: bool = False,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each sequence of a packed row, with the signature of transformers' attention functions.

    Args:
        query: (1, H, T, D), with key and value (1, H_kv, T, D). Without a `pack`, B sequences of equal length, or their
            next positions: (B, H, Q, D) with keys and values (B, H_kv, L, D).
        last_only: compute the last position of each sequence and leave the others 0.
        scaling: of the scores; None: 1 / √D.
        sliding_window: the number of positions that each position attends to, itself included.
        softcap, s_aux: Gemma-2's bound on the scores and the attention sinks of gpt-oss, which no kernel of torch
            computes.

    Returns:
        (1, T, H, D), or (B, Q, H, D) without a pack; and None in place of attention weights.

    Raises:
        ValueError: the model passes a mask, or with a `pack` a cache or a batch, or it has soft caps or sinks. That it
            passes `pack` on is seen from its `calls`.
    """
    if softcap is not None or s_aux is not None:
        raise ValueError("packed attention computes neither soft caps nor attention sinks")
    if attention_mask is not None:
        raise ValueError("packed attention takes no mask")
    if pack is None:
        return _attend_causally(query, key, value, scaling, sliding_window).transpose(1, 2), None
    if len(query) != 1 or key.shape[2] != pack.total_tokens:
        raise ValueError("packed attention takes one row and the pack that describes it, without a cache")
    pack.on_call()
    pack.calls += 1
    pack.windowed_calls += sliding_window is not None
    if query.is_cuda and query.dtype in _VARLEN_DTYPES:
        return _varlen_attention(query, key, value, scaling, sliding_window, pack), None
    queries = 1 if last_only and pack.ends_only else pack.max_length
    parts = [
        _attend_causally(query[:, :, row][:, :, -queries:], key[:, :, row], value[:, :, row], scaling, sliding_window)
        for row in pack.slices()
    ]
    attended = torch.cat([part.transpose(1, 2) for part in parts], dim=1)  # (1, T or B, H, D)
    if attended.shape[1] == pack.total_tokens:
        return attended, None
    return attended.new_zeros(1, pack.total_tokens, *attended.shape[2:]).index_copy_(1, pack.outputs_at, attended), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)  # no mask function beside it, so no mask is built


def _varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
    pack: Pack,
) -> torch.Tensor:
    """All sequences of a packed row in one FlashAttention kernel: (1, T, H, D)."""
    groups = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {"enable_gqa": groups > 1} if _VARLEN_KNOWS_GQA else {}
    if groups > 1 and not _VARLEN_KNOWS_GQA:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    q, k, v = (heads[0].transpose(0, 1) for heads in (query, key, value))  # (T, H, D)
    cu_seqlens, longest = pack.cu_seqlens, pack.max_length
    window = (-1 if sliding_window is None else sliding_window - 1, 0)  # positions to the left, to the right
    attended = varlen_attn(
        q, k, v, cu_seqlens, cu_seqlens, longest, longest, scale=scaling, window_size=window, **options
    )
    assert isinstance(attended, torch.Tensor)
    return attended[None]


def _attend_causally(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    """Causal attention of all L positions of sequences of equal length, or of their last one (Q = 1): (B, H, Q, D)."""
    queries, length = q.shape[2], k.shape[2]
    if (window or length) < length:
        return _attend(q, k, v, scaling, _causal_mask(queries, length, window, q.device))
    if queries == length and len(q) == 1 and torch.is_autocast_enabled("cpu"):
        return attend_in_blocks(q, k, v, scaling)
    return _attend(q, k, v, scaling, None, is_causal=queries > 1)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float | None,
    mask: torch.Tensor | None,
    is_causal: bool = False,
) -> torch.Tensor:
    """Attention of (B, H, Q, D) to (B, H_kv, L, D) → (B, H, Q, D).

    Args:
        mask: (Q, L) or broadcastable booleans, True where a position attends; None: everywhere.
    """
    gqa = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scaling, enable_gqa=gqa)


def _causal_mask(queries: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Returns (Q, L) booleans: True where one of the last Q positions attends to one of all L."""
    positions = torch.arange(length, device=device)
    distance = positions[length - queries :, None] - positions
    return (distance >= 0) & (distance < (length if window is None else window))
