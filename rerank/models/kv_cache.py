"""Keeps the keys and values of sequences that PE-Rank's dynamic decoding extends step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
from transformers import DynamicCache, PretrainedConfig


class KVCache:
    """Keys and values of B packed sequences, with room for a fixed number of decode steps.

    The memory of all steps is allocated at prefill, so that no step copies what is there. The sequences are aligned at
    their ends, so that a step writes one column; a mask is needed only where lengths differ or a sliding window is
    narrower than a sequence.

    Args:
        lengths: length of each sequence at prefill.
        max_steps: the most decode steps that may follow.

    Attributes:
        position_ids: (B, 1) the position id that each sequence reads next.
    """

    def __init__(self, lengths: Sequence[int], max_steps: int, device: torch.device) -> None:
        self._slices = [slice(start, end) for start, end in pairwise([0, *accumulate(lengths)])]
        self._prefill_columns, self._max_steps, self._steps = max(lengths), max_steps, 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._columns = torch.arange(self._prefill_columns + max_steps, device=device)
        self.position_ids = torch.tensor(lengths, device=device)[:, None]
        starts = self._prefill_columns - self.position_ids
        filled = (self._columns >= starts)[:, None, None]  # (B, 1, 1, columns)
        self._filled = filled if min(lengths) < self._prefill_columns else None

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Copies one layer's keys and values of the packed row, (1, H, T, D) each."""
        self._layers[layer] = self._unpacked(key), self._unpacked(value)

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes one layer's (B, H, 1, D) of this step; returns its keys and values so far, (B, H, columns, D) each."""
        keys, values = self._layers[layer]
        column = self._prefill_columns + self._steps
        keys[:, :, column : column + 1], values[:, :, column : column + 1] = key, value
        return keys[:, :, : column + 1], values[:, :, : column + 1]

    def mask(self, window: int | None) -> torch.Tensor | None:
        """Returns (B or 1, 1, 1, columns) booleans, True where this step's position attends; None: everywhere."""
        columns = self._prefill_columns + self._steps + 1
        filled = None if self._filled is None else self._filled[..., :columns]
        if window is None or window >= columns:
            return filled
        near = (self._columns[:columns] >= columns - window)[None, None, None]
        return near if filled is None else filled & near

    def advance(self) -> None:
        """Ends a decode step, after all layers have appended."""
        self._steps += 1
        self.position_ids = self.position_ids + 1

    def _unpacked(self, row: torch.Tensor) -> torch.Tensor:
        """(1, H, T, D) → (B, H, columns, D), each sequence aligned at its end."""
        heads, width = row.shape[1], row.shape[3]
        unpacked = row.new_zeros(len(self._slices), heads, len(self._columns), width)
        for sequence, segment in zip(unpacked, self._slices, strict=True):
            start = self._prefill_columns - (segment.stop - segment.start)
            sequence[:, start : self._prefill_columns] = row[0, :, segment]
        return unpacked


class DecodeState(Protocol):
    """B prefilled sequences that are extended by one position per decode step.

    Attributes:
        outputs: (B, outputs) the model's output at the last position of each sequence.
    """

    outputs: torch.Tensor

    def decode_step(self, inputs: torch.Tensor) -> None:
        """Appends one input vector to each sequence, (B, D), and updates `outputs`."""
        ...


class PackedDecodeState:
    """Decode state of a packed model: all sequences in one forward pass per step, over a preallocated KV cache.

    Args:
        forward: the model.
        kv_cache: filled by the prefill.
        outputs: (B, outputs) of the prefill.
    """

    def __init__(
        self, forward: Callable[..., tuple[torch.Tensor, ...]], kv_cache: KVCache, outputs: torch.Tensor
    ) -> None:
        self._forward = forward
        self._kv_cache = kv_cache
        self.outputs = outputs

    def decode_step(self, inputs: torch.Tensor) -> None:
        options: dict[str, Any] = {"position_ids": self._kv_cache.position_ids, "kv_cache": self._kv_cache}
        self.outputs = self._forward(inputs_embeds=inputs[:, None], use_cache=False, **options)[0][:, -1]
        self._kv_cache.advance()


class GroupedDecodeState:
    """Decode state of an unmodified model: sequences of equal length share a forward pass and a transformers cache.

    Args:
        model: a transformer, or a function that calls it.
        sequences: (T, D) input vectors each; they are prefilled at once.
    """

    def __init__(self, model: Callable[..., Any], config: PretrainedConfig, sequences: Sequence[torch.Tensor]) -> None:
        self._model = model
        by_length: dict[int, list[int]] = {}
        for index, sequence in enumerate(sequences):
            by_length.setdefault(len(sequence), []).append(index)
        self._groups = list(by_length.values())
        self._caches = [DynamicCache(config=config) for _ in self._groups]
        self._read([torch.stack([sequences[index] for index in group]) for group in self._groups])

    def decode_step(self, inputs: torch.Tensor) -> None:
        self._read([inputs[group, None] for group in self._groups])

    def _read(self, batches: Sequence[torch.Tensor]) -> None:
        """Reads a (B, T, D) batch per group and puts the outputs into the order of the sequences."""
        outputs = torch.cat(
            [
                self._model(inputs_embeds=batch, past_key_values=cache, use_cache=True)[0][:, -1]
                for batch, cache in zip(batches, self._caches, strict=True)
            ]
        )
        self.outputs = torch.empty_like(outputs)
        self.outputs[[index for group in self._groups for index in group]] = outputs
