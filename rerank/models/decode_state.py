"""Sequences that a causal model extends step by step: PE-Rank's dynamic decoding, and generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import Cache, DynamicCache, PretrainedConfig, StaticCache

from rerank.models.batches import gpu_length
from rerank.models.compiled_layers import CudaGraphs

#: (B, T) token ids or (B, T, D) input vectors → (B, outputs) at the last position.
_Read = Callable[[torch.Tensor], torch.Tensor]


class DecodeState:
    """B prefilled sequences. Those of equal length share a forward pass and a cache of keys and values.

    On a GPU the cache has one length from the beginning, so that all steps are replays of one CUDA graph.

    Args:
        model: a transformer, or a function that calls it.
        config: the settings of the transformer.
        sequences: B sequences of (T,) token ids or (T, D) input vectors, which are prefilled at once.
        steps: largest number of decode steps.

    Attributes:
        outputs: (B, outputs) the model's output at the last position of each sequence.
    """

    def __init__(
        self, model: Callable[..., Any], config: PretrainedConfig, sequences: Sequence[torch.Tensor], steps: int
    ) -> None:
        by_length: dict[int, list[int]] = {}
        for index, sequence in enumerate(sequences):
            by_length.setdefault(len(sequence), []).append(index)
        self._groups = list(by_length.values())
        self._rows = [index for group in self._groups for index in group]
        reads = [_reader(model, _cache(config, length + steps, sequences[0].device)) for length in by_length]
        on_gpu = sequences[0].device.type == "cuda"
        self._steps = [CudaGraphs(read) if on_gpu else read for read in reads]
        inputs = [torch.stack([sequences[index] for index in group]) for group in self._groups]
        self._keep([read(batch) for read, batch in zip(reads, inputs, strict=True)])

    def decode_step(self, inputs: torch.Tensor) -> None:
        """Appends one token id, (B,), or input vector, (B, D), to each sequence, and updates `outputs`."""
        batches = (inputs[group, None] for group in self._groups)
        self._keep([step(batch) for step, batch in zip(self._steps, batches, strict=True)])

    def _keep(self, outputs: Sequence[torch.Tensor]) -> None:
        """Sets `outputs` from the outputs of the groups, in the order of the sequences."""
        found = torch.cat(list(outputs))
        self.outputs = torch.empty_like(found)
        self.outputs[self._rows] = found


class UncachedDecodeState:
    """A DecodeState without batches or cache: each step reads each whole sequence again. The self-test uses it."""

    def __init__(self, model: Callable[..., Any], sequences: Sequence[torch.Tensor], _steps: int) -> None:
        self._model, self._sequences = model, list(sequences)
        self._read()

    def decode_step(self, inputs: torch.Tensor) -> None:
        """See DecodeState."""
        self._sequences = [torch.cat([old, new[None]]) for old, new in zip(self._sequences, inputs, strict=True)]
        self._read()

    def _read(self) -> None:
        read = [self._model(inputs_embeds=sequence[None], use_cache=False)[0][0, -1] for sequence in self._sequences]
        self.outputs = torch.stack(read)


def _cache(config: PretrainedConfig, tokens: int, device: torch.device) -> Cache:
    if device.type == "cuda":
        return StaticCache(config=config, max_cache_len=gpu_length(tokens, longest=2 * tokens + 128))
    return DynamicCache(config=config)


def _reader(model: Callable[..., Any], cache: Cache) -> _Read:
    def read(batch: torch.Tensor) -> torch.Tensor:
        name = "inputs_embeds" if batch.is_floating_point() else "input_ids"
        outputs: torch.Tensor = model(**{name: batch}, past_key_values=cache, use_cache=True)[0]
        return outputs[:, -1]

    return read
