"""Block attention: the passages of a window do not see each other, so that each is read once, in any order.

A window is a shared beginning, n blocks and a tail. Each block sees the beginning and itself, and all blocks begin at
the same position; the tail sees everything. Uni-Encoder (Song et al., Findings of ACL 2023) places candidates so, and
BlockRank (arXiv 2510.05396) ranks with such blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise, takewhile
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from transformers import PretrainedConfig

from rerank.errors import CheckpointError
from rerank.models.last_token import LastTokenReader, Pack
from rerank.models.state_cache import State, StateCache, TokenIds

#: Keys and values of one layer, (1, H_kv, L, D) each.
KeysAndValues: TypeAlias = tuple[torch.Tensor, torch.Tensor]
#: The states of the tokens of a block that are not in the row, one part after the other, from the beginning on.
BlockState: TypeAlias = Sequence[State]
#: The token ids of the parts of a block, up to its identifier: the beginning, the passage and the link.
Block: TypeAlias = tuple[TokenIds, ...]


class BlockPack(Pack):
    """The boundaries of the parts of one window in a packed row: the beginning, the blocks and the tail.

    Args:
        shared: number of tokens of the beginning.
        blocks: number of tokens of each block in the row.
        tail: number of tokens of the tail; 0: the row has none.
        states: what comes before the tokens of each block, from the beginning on, which is then not in the row; None:
            the row has the whole window.
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
        beginning, ending = ([] if states is not None else [shared]), ([tail] if tail else [])
        lengths = [*beginning, *blocks, *ending]
        super().__init__(lengths, device)
        self._shared, self._states, self._has_tail = shared, states, tail > 0
        starts = [shared] * len(blocks)
        if states is not None:
            starts = [sum(part[0][0].shape[2] for part in state) for state in states]
        end = max(start + length for start, length in zip(starts, blocks, strict=True))
        offsets = torch.tensor([*(0 for _ in beginning), *starts, *(end for _ in ending)])
        self.position_ids = self.position_ids + torch.repeat_interleave(offsets, torch.tensor(lengths)).to(device)

    def sequences(
        self, layer: nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """See Pack; the keys and values of a part begin with those of all that it sees."""
        rows = list(super().sequences(layer, key, value))
        of_tail = [rows.pop()] if self._has_tail else []
        if self._states is None:
            beginning, *rows = rows
            yield beginning
            before: list[list[KeysAndValues]] = [[beginning[1:]]] * len(rows)
        else:
            index = cast(int, layer.layer_idx)
            before = [[part[index] for part in state] for state in self._states]
        seen = list[KeysAndValues]()
        for (row, keys, values), parts in zip(rows, before, strict=True):
            keys, values = _joined([*parts, (keys, values)])
            yield row, keys, values
            first = self._shared if seen else 0  # the beginning counts once
            seen.append((keys[:, :, first:], values[:, :, first:]))
        for row, keys, values in of_tail:
            yield row, *_joined([*seen, (keys, values)])


class StateRecorder:
    """Copies the keys and values of segments of a packed row, layer by layer, in place of a KVCache."""

    def __init__(self, segments: Sequence[slice]) -> None:
        self._segments = segments
        self._layers: list[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Copies one layer's (1, H_kv, T, D); the layers come in their order."""
        if layer != len(self._layers):
            raise ValueError(f"layer {layer} was read after {len(self._layers)} layers; this is a bug")
        self._layers.append([(_copy(key[:, :, each]), _copy(value[:, :, each])) for each in self._segments])

    def states(self) -> list[State]:
        """The state of each segment."""
        return list(zip(*self._layers, strict=True))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy without the rest of its row, in the dtype to which autocast would round it before attention."""
    device = tensor.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)


class BlockReader:
    """Reads windows part by part, and keeps the states of the parts of blocks, for windows in which they come again.

    Args:
        reader: of a model that packs sequences.
        max_bytes: bound on the memory for states; 0: none is kept.

    Attributes:
        states: the states of a part, by `part_keys`.
    """

    def __init__(self, reader: LastTokenReader, device: torch.device, max_bytes: int) -> None:
        self._reader, self._device = reader, device
        self.states = StateCache(max_bytes)

    def read_window(self, blocks: Sequence[Block], identifiers: Sequence[int], tail: TokenIds) -> torch.Tensor:
        """(outputs,) at the last position of a tail that sees blocks, each followed by its identifier.

        Args:
            blocks: all have the first part in common, the beginning.
        """
        beginning = blocks[0][:1]
        states = self._completed({beginning: self._kept(beginning)})
        states = self._completed({block: self._kept(block) or states[beginning] for block in blocks})
        pack = BlockPack(
            len(blocks[0][0]), [1] * len(blocks), len(tail), self._device, [states[each] for each in blocks]
        )
        return self._read([*identifiers, *tail], pack)[-1]

    def _kept(self, block: Block) -> BlockState:
        """The states of the first parts of a block, up to the first one that is not kept."""
        found = map(self.states.get, part_keys(block))
        return tuple(state for state in takewhile(lambda state: state is not None, found) if state is not None)

    def _completed(self, known: Mapping[Block, BlockState]) -> dict[Block, BlockState]:
        """The states of all parts of blocks. The first ones may be known; the others are read in one row."""
        unread = {block: block[len(states) :] for block, states in known.items() if len(states) < len(block)}
        if not unread:
            return dict(known)
        lengths = [sum(map(len, parts)) for parts in unread.values()]
        ends = accumulate(len(part) for parts in unread.values() for part in parts)
        recorder = StateRecorder([slice(start, end) for start, end in pairwise([0, *ends])])
        pack = BlockPack(0, lengths, 0, self._device, [known[block] for block in unread])
        self._read([token for parts in unread.values() for part in parts for token in part], pack, kv_cache=recorder)
        read, states = iter(recorder.states()), dict(known)
        for block, parts in unread.items():
            states[block] = (*known[block], *islice(read, len(parts)))
            for key, state in list(zip(part_keys(block), states[block], strict=True))[-len(parts) :]:
                self.states.put(key, state)
        return states

    @torch.inference_mode()
    def _read(self, row: Sequence[int], pack: BlockPack, **options: Any) -> torch.Tensor:
        pack.on_call = self._reader.between_layers
        tokens = torch.tensor(row, device=self._device)
        return self._reader.read_row(tokens, pack.outputs_at, position_ids=pack.position_ids, pack=pack, **options)


def part_keys(block: Block) -> list[TokenIds]:
    """The keys of the states of a block's parts: all token ids up to the end of the part, with -1 between parts."""
    return list(accumulate(block, lambda before, part: (*before, -1, *part)))


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
        f"attention: block cannot be used with {config.model_type}, which has {problem}; "
        "use a template with attention: causal, or another model"
    )
