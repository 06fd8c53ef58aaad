"""Sequences that PE-Rank's dynamic decoding extends step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache, PretrainedConfig


class DecodeState:
    """B prefilled sequences; those of equal length share a forward pass and a cache of transformers.

    Args:
        model: a transformer, or a function that calls it.
        sequences: (T, D) input vectors each; they are prefilled at once.

    Attributes:
        outputs: (B, outputs) the model's output at the last position of each sequence.
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
        """Appends one input vector to each sequence, (B, D), and updates `outputs`."""
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


class RecomputedState:
    """The same, but plainly: each sequence is read alone, and again as a whole at each step. The self-test needs it."""

    def __init__(self, model: Callable[..., Any], sequences: Sequence[torch.Tensor]) -> None:
        self._model, self._sequences = model, list(sequences)
        self._read()

    def decode_step(self, inputs: torch.Tensor) -> None:
        """See DecodeState."""
        self._sequences = [torch.cat([old, new[None]]) for old, new in zip(self._sequences, inputs, strict=True)]
        self._read()

    def _read(self) -> None:
        read = [self._model(inputs_embeds=sequence[None], use_cache=False)[0][0, -1] for sequence in self._sequences]
        self.outputs = torch.stack(read)
