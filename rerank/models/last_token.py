"""Reads many sequences, and returns the model's output at the last token of each, or at given positions.

Sequences of similar lengths share a forward pass, padded at their ends. A position of a causal model does not depend on
what follows it, so the padding needs no mask and changes an output by rounding only.

On a CPU, short requests run between the layers of a long one. On a GPU the layers are compiled, and passes are replayed
as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from rerank.models.batches import (
    CPU_BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    batches_by_length,
    batches_of_equal_length,
    gpu_length,
)
from rerank.models.compiled_layers import CudaGraphs, PlaceholderCache, compile_layers
from rerank.models.decode_state import DecodeState
from rerank.models.memory import fitting_tokens

#: Floating-point operations of a batch on a GPU. They take an H100 a tenth of a second, which is the longest wait of
#: short requests; larger batches are not faster.
_GPU_BATCH_FLOP = 6e13
#: The longest sequence, in tokens, that has a CUDA graph before the first request. A window of 20 passages has some
#: 2,000 tokens. Longer sequences get their graphs when they first occur.
_WARM_UP_TOKENS = 2048
#: Position embeddings of these types depend on the longest sequence of a batch.
_LENGTH_DEPENDENT = {"dynamic", "longrope"}


class LastTokenReader:
    """Reads sequences with a causal model; returns its outputs at the last position of each, or at given positions.

    Args:
        model: a transformer without a head, or with a small head, which is computed at all positions.
        autocast: whether float32 weights compute in bfloat16 where autocast considers it safe.
        from_vectors: whether the sequences are input vectors instead of token ids.

    Attributes:
        supports_batching: whether sequences can share a forward pass.
        gpu_batch_tokens: largest number of tokens of a pass on a GPU; 0 on a CPU.
        between_layers: called on a CPU before each layer of a model that has `layers`; it may read other sequences.
    """

    def __init__(self, model: PreTrainedModel, autocast: bool = False, from_vectors: bool = False) -> None:
        self._model, self._autocast, self._from_vectors = model, autocast, from_vectors
        self.supports_batching = not _depends_on_length(model)
        self.gpu_batch_tokens = 0
        self.between_layers: Callable[[], None] = lambda: None
        self._read_positions: tuple[torch.Tensor, torch.Tensor] | None = None
        self._graphs: CudaGraphs | None = None
        self._cache: PlaceholderCache | None = None
        self._longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**20
        if model.device.type == "cpu":
            self._pause_between_layers()
        else:
            self._speed_up()

    def read(self, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the (B, outputs) outputs of B sequences: (T,) token ids or (T, D) vectors, on the model's device."""
        return torch.cat(self.read_at(sequences, [[len(sequence) - 1] for sequence in sequences]))

    @torch.inference_mode()
    def read_at(self, sequences: Sequence[torch.Tensor], positions: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Returns for each sequence the (n, outputs) outputs at its n positions; see `read` for the sequences."""
        if len(sequences) == 1:  # most windows on a CPU come alone
            return [self._read_batch(sequences, positions)]
        outputs: dict[int, torch.Tensor] = {}
        for rows in self._batches([len(sequence) for sequence in sequences]):
            batch_positions = [positions[row] for row in rows]
            found = self._read_batch([sequences[row] for row in rows], batch_positions)
            outputs |= zip(rows, found.split([*map(len, batch_positions)]), strict=True)
        return [outputs[row] for row in range(len(sequences))]

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[torch.Tensor], steps: int) -> DecodeState:
        """Reads the sequences and keeps their keys and values, for at most `steps` decode steps."""
        return DecodeState(self._forward, self._model.config, sequences, steps)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        if not self.supports_batching:
            return batches_by_length(lengths, 0)
        if self.gpu_batch_tokens:
            return batches_of_equal_length([self._padded_length(one) for one in lengths], self.gpu_batch_tokens)
        return batches_by_length(lengths, CPU_BATCH_TOKENS)

    def _padded_length(self, length: int) -> int:
        if not (self.gpu_batch_tokens and self.supports_batching):
            return length
        return gpu_length(length, self._longest)

    def _read_batch(self, sequences: Sequence[torch.Tensor], positions: Sequence[Sequence[int]]) -> torch.Tensor:
        padded = pad_sequence(list(sequences), batch_first=True)  # (B, T) or (B, T, D)
        missing = self._padded_length(padded.shape[1]) - padded.shape[1]
        if missing:
            padded = torch.cat([padded, padded.new_zeros(len(padded), missing, *padded.shape[2:])], dim=1)
        return self._read_padded(padded, positions)

    def _read_padded(self, padded: torch.Tensor, positions: Sequence[Sequence[int]]) -> torch.Tensor:
        """Returns outputs (N, outputs) at N positions of B sequences: (B, T) token ids or (B, T, D) input vectors."""
        row_of_output = [row for row, row_positions in enumerate(positions) for _ in row_positions]
        rows = torch.tensor(row_of_output, device=padded.device)
        columns = torch.tensor(list(chain.from_iterable(positions)), device=padded.device)
        # A long pass has no graph, which would keep its outputs in memory.
        is_long = len(padded) * padded.shape[1] > self.gpu_batch_tokens
        # If this pass interrupts another one, that goes on with its own positions afterwards.
        preempted, self._read_positions = self._read_positions, (rows, columns)
        try:
            return (self._outputs if is_long else self._graphs or self._outputs)(padded)[rows, columns]
        finally:
            self._read_positions = preempted

    def _outputs(self, padded: torch.Tensor) -> torch.Tensor:
        """Returns (B, T, outputs): the logits or, without a head, the last hidden states."""
        name = "inputs_embeds" if padded.is_floating_point() else "input_ids"
        return self._forward(**{name: padded}, past_key_values=self._cache, use_cache=False)[0]

    def _forward(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        """Returns the model's output. Its first element is the logits or, without a head, the last hidden states."""
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._autocast):
            return self._model(**inputs)

    def _speed_up(self) -> None:
        """Compiles the layers, and makes CUDA graphs for a few lengths.

        cuDNN's attention is faster on a Hopper GPU than others, but plans 38 ms for every new shape. So it is used in
        these graphs only, where few shapes occur.
        """
        layers: Any = getattr(self._model.base_model, "layers", self._model.base_model)
        parameters = sum(tensor.numel() for tensor in layers.state_dict().values())  # counts float8 weights, too
        self.gpu_batch_tokens = int(min(GPU_BATCH_TOKENS, max(1, _GPU_BATCH_FLOP / (2 * parameters))))
        torch.backends.cuda.enable_cudnn_sdp(True)
        if compile_layers(self._model, self._warm_up):
            self._cache = PlaceholderCache()
        torch.backends.cuda.enable_cudnn_sdp(False)
        length = self._padded_length(min(_WARM_UP_TOKENS, self._longest))
        read = partial(self.read, [self._example(length)])
        self.gpu_batch_tokens = fitting_tokens(read, length, self._model.device, self.gpu_batch_tokens)
        if self.supports_batching and self._cache is not None:
            self._graphs = CudaGraphs(self._outputs)
            for length in {self._padded_length(some) for some in range(1, min(_WARM_UP_TOKENS, self._longest) + 1)}:
                self.read([self._example(length)])

    def _warm_up(self) -> None:
        for length in (self._padded_length(1), self._padded_length(min(200, self._longest))):
            self.read([self._example(length)])
            self.read([self._example(length)] * 2)

    def _example(self, length: int) -> torch.Tensor:
        ids = torch.zeros(length, dtype=torch.long, device=self._model.device)
        embed: Any = self._model.get_input_embeddings()
        return embed(ids).detach() if self._from_vectors else ids

    def _pause_between_layers(self) -> None:
        """Calls `between_layers` before each layer, and computes the last layer's MLP only at the read positions."""
        layers: Any = getattr(self._model.base_model, "layers", ())
        for layer in layers:
            layer.register_forward_pre_hook(self._before_layer)
        if layers and isinstance(getattr(getattr(layers[-1], "mlp", None), "down_proj", None), nn.Linear):
            layers[-1].mlp.forward = partial(self._mlp, layers[-1].mlp.forward)

    def _before_layer(self, *_: object) -> None:
        self.between_layers()

    def _mlp(self, forward: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
        """The outputs of the last layer's MLP at the positions that are read, and 0 at all other positions.

        By this, a pass takes .83 to .92 of the time in models of 3 to 7 layers, and .97 with 30; the bundled PE-Rank
        has 3.
        """
        if self._read_positions is None:
            return forward(hidden)
        found = forward(hidden[self._read_positions])
        return found.new_zeros(*hidden.shape).index_put_(self._read_positions, found)


def read_plainly(
    model: PreTrainedModel, sequences: Sequence[torch.Tensor], positions: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """The result of `LastTokenReader.read_at` without batches or changes to the model, for the self-test."""
    outputs = (model(input_ids=ids[None], use_cache=False)[0][0] for ids in sequences)
    return [output[list(row_positions)] for output, row_positions in zip(outputs, positions, strict=True)]


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


def _depends_on_length(model: PreTrainedModel) -> bool:
    rope = getattr(model.config, "rope_parameters", None) or {}
    types = {one.get("rope_type") for one in (rope, *rope.values()) if isinstance(one, dict)}
    return not types.isdisjoint(_LENGTH_DEPENDENT)
