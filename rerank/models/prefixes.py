"""One forward pass over sequences that begin with prefixes. A prefix that was read before is not read again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import torch
from torch import nn

from rerank.models.last_token import LastTokenReader, Pack
from rerank.models.state_cache import State, StateCache, TokenIds


@dataclass(frozen=True, slots=True)
class Continuation:
    """The token ids of a sequence: its prefix, whose state may be known, and the rest."""

    prefix: TokenIds
    rest: TokenIds
    state: State | None = None

    @property
    def unread(self) -> TokenIds:
        """The token ids that a model has to read."""
        return self.rest if self.state is not None else self.prefix + self.rest


class PrefixedPack(Pack):
    """The boundaries of sequences in a packed row. Some continue a prefix that is not in the row.

    Args:
        prefixes: the state of each sequence's prefix; None: the row has the whole sequence.
    """

    def __init__(
        self, lengths: Sequence[int], device: torch.device, tail: int, prefixes: Sequence[State | None]
    ) -> None:
        super().__init__(lengths, device, tail)
        self._prefixes = prefixes
        starts = [0 if prefix is None else prefix[0][0].shape[2] for prefix in prefixes]
        self.has_prefixes = any(starts)
        offsets = torch.repeat_interleave(torch.tensor(starts), torch.tensor(lengths))
        self.position_ids = self.position_ids + offsets.to(device)

    def sequences(
        self, layer: nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """See Pack; the keys and values of a sequence begin with those of its prefix."""
        for prefix, (row, keys, values) in zip(self._prefixes, super().sequences(layer, key, value), strict=True):
            if prefix is None:
                yield row, keys, values
            else:
                earlier_keys, earlier_values = prefix[cast(int, layer.layer_idx)]
                yield row, torch.cat([earlier_keys, keys], dim=2), torch.cat([earlier_values, values], dim=2)


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


@torch.inference_mode()
def read_continuations(
    reader: LastTokenReader, sequences: Sequence[Continuation], tail: int, device: torch.device, states: StateCache
) -> torch.Tensor:
    """(B · tail, outputs) at the last positions of B sequences in one row. The states of new prefixes go into `states`.

    The outputs are those of whole sequences but for rounding: a matrix product of fewer rows may add in another order.

    Args:
        reader: of a model that packs sequences.
        tail: the number of last positions of each sequence that have outputs; none is longer than its rest.
    """
    rows = [torch.tensor(sequence.unread, device=device) for sequence in sequences]
    lengths = [len(row) for row in rows]
    new = {
        sequence.prefix: slice(end - length, end - len(sequence.rest))
        for sequence, length, end in zip(sequences, lengths, accumulate(lengths), strict=True)
        if sequence.state is None and sequence.prefix
    }
    recorder = StateRecorder(list(new.values()))
    pack = PrefixedPack(lengths, device, tail, [sequence.state for sequence in sequences])
    pack.on_call = reader.between_layers
    positions = {"position_ids": pack.position_ids, "pack": pack}
    outputs = reader.read_row(torch.cat(rows), pack.outputs_at, kv_cache=recorder if new else None, **positions)
    for prefix, state in zip(new, recorder.states(), strict=True):
        states.put(prefix, state)
    return outputs
