"""Block attention: the passages of a window do not see each other, so that each is read once, in any order.

A window is a shared beginning, n blocks and a tail. Each block sees the beginning and itself, and all blocks begin at
the same position; the tail sees everything. Uni-Encoder (Song et al., Findings of ACL 2023) places candidates so, and
BlockRank (arXiv 2510.05396) ranks with such blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

import torch
from torch import nn
from transformers import PretrainedConfig

from rerank.errors import CheckpointError
from rerank.models.last_token import Pack
from rerank.models.state_cache import State

#: Keys and values of one layer, (1, H_kv, L, D) each.
KeysAndValues: TypeAlias = tuple[torch.Tensor, torch.Tensor]
#: The states of the tokens of a block that are not in the row, one part after the other, from the beginning on.
BlockState: TypeAlias = Sequence[State]


class BlockPack(Pack):
    """The boundaries of the parts of one window in a packed row: the beginning, the blocks and the tail.

    Args:
        shared: number of tokens of the beginning.
        blocks: number of tokens of each block in the row.
        tail: number of tokens of the tail.
        states: what comes before the tokens of each block, with the beginning, which is then not in the row; None: the
            row has the whole window.
    """

    has_prefixes = True

    def __init__(
        self,
        shared: int,
        blocks: Sequence[int],
        tail: int,
        device: torch.device,
        states: Sequence[BlockState] | None = None,
    ) -> None:
        beginning = [] if states else [shared]
        lengths = [*beginning, *blocks, tail]
        super().__init__(lengths, device)
        self._shared, self._states = shared, states
        starts = [sum(part[0][0].shape[2] for part in state) for state in states] if states else [shared] * len(blocks)
        end = max(start + length for start, length in zip(starts, blocks, strict=True))
        offsets = torch.tensor([*(0 for _ in beginning), *starts, end])
        self.position_ids = self.position_ids + torch.repeat_interleave(offsets, torch.tensor(lengths)).to(device)

    def sequences(
        self, layer: nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """See Pack; the keys and values of a part begin with those of all that it sees."""
        *rows, (tail_row, *of_tail) = super().sequences(layer, key, value)
        if self._states is None:
            beginning, *rows = rows
            yield beginning
            before: list[list[KeysAndValues]] = [[beginning[1:]]] * len(rows)
        else:
            index = cast(int, layer.layer_idx)
            before = [[part[index] for part in state] for state in self._states]
        seen = list[KeysAndValues]()
        for (row, *own), parts in zip(rows, before, strict=True):
            block = _joined([*parts, cast(KeysAndValues, tuple(own))])
            yield row, *block
            first = self._shared if seen else 0  # the beginning counts once
            seen.append((block[0][:, :, first:], block[1][:, :, first:]))
        yield tail_row, *_joined([*seen, cast(KeysAndValues, tuple(of_tail))])


def _joined(parts: Sequence[KeysAndValues]) -> KeysAndValues:
    """Keys and values of several parts, one after the other."""
    keys, values = zip(*parts, strict=True)
    return torch.cat(keys, dim=2), torch.cat(values, dim=2)


def check_block_attention(config: PretrainedConfig) -> None:
    """Raises: CheckpointError if a model has no rotary positions, or layers that do not see the whole prompt."""
    layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if not getattr(config, "rope_parameters", None):
        problem = "no rotary positions"
    elif layers or window:
        problem = f"layers of {', '.join(sorted(layers)) or f'a sliding window of {window} tokens'}"
    else:
        return
    raise CheckpointError(
        f"attention: block places passages side by side, for which {config.model_type} cannot be used: it has {problem}; "
        "use a template with attention: causal, or another model"
    )
