"""Block attention: the passages of a window do not see each other, so that each is computed once, in any order.

A window is a shared beginning, n blocks and a tail. Each block sees the beginning and itself, and all blocks begin at
the same position; the tail sees everything. Uni-Encoder (Song et al., ACL 2023) places candidates so, and BlockRank
(arXiv 2510.05396) ranks with such blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from rerank.errors import CheckpointError

#: The name under which `block_attention` is registered with transformers.
BLOCK_ATTENTION = "block"


@dataclass(frozen=True)
class BlockLayout:
    """The places of a window's parts in a row of T tokens, and the masks of its attention.

    Attributes:
        shared: number of tokens of the shared beginning.
        tail: number of tokens of the tail.
        position_ids: (1, T).
        columns: (n, L) index in the row of the tokens of each block, 0 at padding.
        real: (number of tokens in blocks,) index of those tokens in the flattened `columns`.
        block_mask: (n, 1, L, S + L) booleans, True where a block's token attends to the beginning and its block.
        tail_mask: (1, 1, tail, S + n · L + tail) booleans, the same for the tail.
    """

    shared: int
    tail: int
    position_ids: torch.Tensor
    columns: torch.Tensor
    real: torch.Tensor
    block_mask: torch.Tensor
    tail_mask: torch.Tensor

    @classmethod
    def of(cls, shared: int, blocks: Sequence[int], tail: int) -> BlockLayout:
        """The layout of a row: the beginning, blocks of these lengths, and the tail."""
        n, longest = len(blocks), max(blocks)
        places = torch.arange(longest)
        own = places < torch.tensor(blocks)[:, None]  # (n, L) True at tokens, False at padding
        starts = shared + torch.tensor([0, *blocks[:-1]]).cumsum(0)
        causal = places[:, None] >= places
        after = torch.arange(tail)
        positions = [torch.arange(shared), *(shared + torch.arange(b) for b in blocks), shared + longest + after]
        return cls(
            shared,
            tail,
            torch.cat(positions)[None],
            torch.where(own, starts[:, None] + places, 0),
            own.flatten().nonzero()[:, 0],
            torch.cat([torch.ones(longest, shared, dtype=torch.bool), causal], dim=1)[None, None],
            torch.cat(
                [
                    torch.ones(tail, shared, dtype=torch.bool),
                    own.flatten()[None].expand(tail, n * longest),
                    after[:, None] >= after,
                ],
                dim=1,
            )[None, None],
        )


def block_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    layout: BlockLayout | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one window, (1, H, T, D) with key and value (1, H_kv, T, D) → (1, T, H, D)."""
    if layout is None or attention_mask is not None or len(query) != 1:
        raise ValueError("block attention takes one row and its layout, without a mask or a cache")
    options: dict[str, Any] = {"scale": scaling, "enable_gqa": query.shape[1] != key.shape[1]}
    shared, tail = layout.shared, layout.tail
    q, k, v = (_blocks(heads, layout.columns) for heads in (query, key, value))  # (n, H, L, D)
    n = len(q)
    k_shared, v_shared = key[:, :, :shared], value[:, :, :shared]
    beginning = scaled_dot_product_attention(query[:, :, :shared], k_shared, v_shared, is_causal=True, **options)
    k_all = torch.cat([k_shared.expand(n, -1, -1, -1), k], dim=2)
    v_all = torch.cat([v_shared.expand(n, -1, -1, -1), v], dim=2)
    blocks = scaled_dot_product_attention(q, k_all, v_all, layout.block_mask, **options)
    k_all = torch.cat([k_shared, _flat(k), key[:, :, key.shape[2] - tail :]], dim=2)
    v_all = torch.cat([v_shared, _flat(v), value[:, :, value.shape[2] - tail :]], dim=2)
    end = scaled_dot_product_attention(query[:, :, query.shape[2] - tail :], k_all, v_all, layout.tail_mask, **options)
    inner = blocks.transpose(1, 2).flatten(0, 1).index_select(0, layout.real)[None]
    return torch.cat([beginning.transpose(1, 2), inner, end.transpose(1, 2)], dim=1), None


AttentionInterface.register(BLOCK_ATTENTION, block_attention)


def _blocks(heads: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """(1, H, T, D) → (n, H, L, D), the blocks of a row side by side."""
    n, longest = columns.shape
    return heads[0].index_select(1, columns.flatten()).unflatten(1, (n, longest)).transpose(0, 1)


def _flat(heads: torch.Tensor) -> torch.Tensor:
    """(n, H, L, D) → (1, H, n · L, D)."""
    return heads.transpose(0, 1).flatten(1, 2)[None]


def use_block_attention(model: PreTrainedModel) -> None:
    """Sets a model, or that of an adapter, to block attention.

    Raises:
        CheckpointError: it has no rotary positions, or another attention than a plain one.
    """
    config = model.config
    rope = getattr(config, "rope_parameters", None)
    if not rope or rope.get("rope_type", "default") in ("dynamic", "longrope"):
        raise CheckpointError(f"block attention needs rotary positions; {config.model_type} has others")
    layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if layers or getattr(config, "sliding_window", None) or getattr(config, "attn_logit_softcapping", None):
        raise CheckpointError(f"block attention needs plain attention in all layers; {config.model_type} has others")
    model.set_attn_implementation(BLOCK_ATTENTION)
