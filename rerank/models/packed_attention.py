"""Attention over packed sequences: they stand side by side in one row, and each reads itself only.

Neither padding nor a mask: the ends of the sequences travel as a keyword of the model's forward down to every layer.
Registered with transformers under `PACKED`, without a mask function beside it, so that no mask is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

#: The name to give to `set_attn_implementation`.
PACKED = "packed"

_VARLEN_DTYPES = (torch.float16, torch.bfloat16)
#: Since torch 2.12 fewer heads of keys than of queries must be announced; before, there is no word for it.
_VARLEN_KNOWS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters


class Pack:
    """Where the sequences of a packed row begin and end; counts the layers that have read it.

    Attributes:
        last: (B,) place of the last position of each sequence.
        position_ids: (1, T) positions, from 0 in every sequence.
        calls: how often attention was computed with it.
        windowed: how often with a sliding window.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._ends = [0, *accumulate(lengths)]
        self.last = torch.tensor(self._ends[1:], device=device) - 1
        self.position_ids = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
        self.cu_seqlens = torch.tensor(self._ends, dtype=torch.int32, device=device)
        self.longest = max(lengths)
        self.calls = 0
        self.windowed = 0

    def __len__(self) -> int:
        """T, how long the row is."""
        return self._ends[-1]

    def segments(self) -> Iterator[slice]:
        return (slice(start, end) for start, end in pairwise(self._ends))


class KVCache:
    """Keys and values of B sequences that were read packed, so that each can be read on, a position a step.

    Nothing grows: there is room for all steps from the beginning. The sequences end side by side, so that a step writes
    one column; a mask is needed only where some are shorter than others, or longer than a sliding window.

    Attributes:
        position_ids: (B, 1) the position that each sequence reads next.
    """

    def __init__(self, lengths: Sequence[int], steps: int, device: torch.device) -> None:
        self._longest, self._steps, self._taken = max(lengths), steps, 0
        self._starts = [self._longest - length for length in lengths]
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.position_ids = torch.tensor(lengths, device=device)[:, None]
        starts = self._longest - self.position_ids
        columns = torch.arange(self._longest + steps, device=device)
        self._written = (columns >= starts)[:, None, None] if any(self._starts) else None  # (B, 1, 1, longest + steps)
        self._columns = columns

    def keep(self, layer: int, key: torch.Tensor, value: torch.Tensor, pack: Pack) -> None:
        """Copies a layer's (1, H, T, D) of a packed row, apart as (B, H, longest + steps, D)."""
        kept = tuple(self._apart(row, pack) for row in (key, value))
        self._layers[layer] = kept[0], kept[1]

    def add(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes a layer's (B, H, 1, D) of this step; gives all that is written, (B, H, columns, D) each."""
        keys, values = self._layers[layer]
        column = self._longest + self._taken
        keys[:, :, column : column + 1], values[:, :, column : column + 1] = key, value
        return keys[:, :, : column + 1], values[:, :, : column + 1]

    def mask(self, window: int | None) -> torch.Tensor | None:
        """(B or 1, 1, 1, columns) booleans: what the position of this step reads; None: everything."""
        columns = self._longest + self._taken + 1
        written = None if self._written is None else self._written[..., :columns]
        if window is None or window >= columns:
            return written
        near = (self._columns[:columns] >= columns - window)[None, None, None]
        return near if written is None else written & near

    def advance(self) -> None:
        """The step is done in all layers."""
        self._taken += 1
        self.position_ids = self.position_ids + 1

    def _apart(self, row: torch.Tensor, pack: Pack) -> torch.Tensor:
        heads, width = row.shape[1], row.shape[3]
        apart = row.new_zeros(len(self._starts), heads, self._longest + self._steps, width)
        for own, start, segment in zip(apart, self._starts, pack.segments(), strict=True):
            own[:, start : self._longest] = row[0, :, segment]
        return apart


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    pack: Pack | None = None,
    kv_cache: KVCache | None = None,
    last_only: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each sequence; the signature is that of transformers' attention functions.

    With a kv_cache and no pack, the row of each of B sequences is its next position, which reads the kv_cache.

    Args:
        query: (1, H, T, D); key and value (1, H of keys, T, D). Without a pack, (B, H, 1, D).
        sliding_window: how many positions each one reads, itself included.
        softcap: Gemma-2's bound on the scores.
        s_aux: (H,) gpt-oss's sinks, scores of nothing.
        kv_cache: keeps keys and values of the packed row.
        last_only: compute the last position of each sequence, and leave the others 0.

    Returns:
        (1, T, H, D), or (B, 1, H, D) without a pack, and no weights.

    Raises:
        ValueError: the model brings a mask, a cache or a batch, or drops `pack` on the way.
    """
    if pack is None and kv_cache is not None:
        keys, values = kv_cache.add(cast(int, module.layer_idx), key, value)
        return _step(query, keys, values, scaling, kv_cache.mask(sliding_window), softcap, s_aux), None
    if pack is None or attention_mask is not None or not len(query) == 1 or not key.shape[2] == len(pack):
        raise ValueError("packed attention wants one row, the pack that describes it, and neither mask nor cache")
    plain = softcap is None and s_aux is None
    pack.calls += 1
    pack.windowed += sliding_window is not None
    if kv_cache is not None:
        kv_cache.keep(cast(int, module.layer_idx), key, value, pack)
    if plain and query.is_cuda and query.dtype in _VARLEN_DTYPES:
        return _varlen(query, key, value, scaling, sliding_window, pack), None
    parts = []
    for segment in pack.segments():
        q, k, v = query[:, :, segment], key[:, :, segment], value[:, :, segment]
        q = q[:, :, -1:] if last_only else q
        if plain:
            part = _one(q, k, v, scaling, sliding_window)
        else:
            reads = _reads(q.shape[2], k.shape[2], sliding_window, q.device)
            part = _one_by_hand(q, k, v, scaling, reads, softcap, s_aux)
        parts.append(part.transpose(1, 2))
    attended = torch.cat(parts, dim=1)  # (1, T or B, H, D)
    if not last_only:
        return attended, None
    whole = attended.new_zeros(1, len(pack), *attended.shape[2:])
    whole[:, pack.last] = attended
    return whole, None


AttentionInterface.register(PACKED, packed_attention)


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
    pack: Pack,
) -> torch.Tensor:
    """All sequences in one FlashAttention kernel: (1, T, H, D)."""
    groups = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {"enable_gqa": groups > 1} if _VARLEN_KNOWS_GQA else {}
    if groups > 1 and not _VARLEN_KNOWS_GQA:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    q, k, v = (heads[0].transpose(0, 1) for heads in (query, key, value))  # (T, H, D)
    ends, longest = pack.cu_seqlens, pack.longest
    window = (-1 if sliding_window is None else sliding_window - 1, 0)  # positions to the left and to the right
    attended = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scaling, window_size=window, **options)
    assert isinstance(attended, torch.Tensor)
    return attended[None]


def _step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float | None,
    mask: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One position of each of B sequences, (B, H, 1, D), over its own keys and values: (B, 1, H, D)."""
    if softcap is not None or sinks is not None:
        attended = _one_by_hand(q, k, v, scaling, mask, softcap, sinks)
    else:
        gqa = q.shape[1] != k.shape[1]
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=gqa)
    return attended.transpose(1, 2)


def _one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, window: int | None) -> torch.Tensor:
    """One sequence: (1, H, Q, D), for the last Q of its L positions."""
    queries, length = q.shape[2], k.shape[2]
    gqa = q.shape[1] != k.shape[1]
    if window is not None and length > window:
        mask = _reads(queries, length, window, q.device)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=gqa)
    return scaled_dot_product_attention(q, k, v, is_causal=queries > 1, scale=scaling, enable_gqa=gqa)


def _one_by_hand(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float | None,
    reads: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """As `_one`, with what no kernel of torch computes: a bound on the scores, and sinks beside them.

    Args:
        reads: booleans, whether each of the Q positions reads each of the L; None: all.
    """
    rows, queries, length, groups = len(q), q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scaling is None else scaling)  # (1, H, Q, L)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.float() if reads is None else scores.float().masked_fill(~reads, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().reshape(1, -1, 1, 1).expand(rows, -1, queries, 1)], dim=3)
    return scores.softmax(dim=3)[..., :length].to(v.dtype) @ v


def _reads(queries: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """(Q, L) booleans: whether each of the last Q positions reads each of all L."""
    places = torch.arange(length, device=device)
    distance = places[length - queries :, None] - places
    return (distance >= 0) & (distance < (length if window is None else window))
