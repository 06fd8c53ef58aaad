"""Reads many sequences in one forward pass, and returns the model's output at the last token of each.

The sequences are packed into one row, see `packed_attention`; `packing_check` decides at load which models allow it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.models.decode_state import DecodeState
from rerank.models.packed_attention import Pack
from rerank.types import Batching

#: The modules of a decoder layer whose computation `shorten_last_layer` knows.
_KNOWN_LAYER_MODULES = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}


class LastTokenReader:
    """Returns a model's outputs at the last position of each sequence.

    `rerank.models.packing_check.make_last_token_reader` makes one that packs where the model allows it.

    Args:
        model: a transformer with or without a head.
        packed: the model's attention implementation is PACKED_ATTENTION.
        last_layer_shortened: the last layer of a packed row returns the last positions only.

    Attributes:
        autocast: compute in bfloat16 where autocast considers it safe, for float32 weights on a CPU.
        between_layers: called in each layer that reads a packed row; it may read other rows meanwhile.
    """

    def __init__(self, model: PreTrainedModel, packed: bool = False, last_layer_shortened: bool = False) -> None:
        self._model = model
        self.autocast = False
        self._has_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.batching: Batching = "packed" if packed else "one_by_one"
        self.last_layer_shortened = last_layer_shortened
        self.between_layers: Callable[[], None] = lambda: None

    @torch.inference_mode()
    def read(self, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns (B, outputs) of B sequences, each (T,) token ids or (T, D) input vectors, on the model's device."""
        if self.batching == "packed":
            return self.read_packed(sequences)[0]
        return self.read_at(sequences, [[len(sequence) - 1] for sequence in sequences])

    @torch.inference_mode()
    def read_at(self, sequences: Sequence[torch.Tensor], positions: Sequence[Sequence[int]]) -> torch.Tensor:
        """Returns (P, outputs) at P positions, some of each of the sequences; see `read`."""
        at = [torch.tensor(list(some), device=sequences[0].device) for some in positions]
        if self.batching == "one_by_one":
            return torch.cat([self.read_row(sequence, some) for sequence, some in zip(sequences, at, strict=True)])
        pack = Pack([len(sequence) for sequence in sequences], sequences[0].device)
        pack.read_at(at)
        return self._read_pack(sequences, pack)

    def read_packed(self, sequences: Sequence[torch.Tensor], **options: Any) -> tuple[torch.Tensor, Pack]:
        """Returns (B, outputs) of B sequences in one row, and the pack, which counts the layers that read it."""
        pack = Pack([len(sequence) for sequence in sequences], sequences[0].device)
        return self._read_pack(sequences, pack, **options), pack

    def _read_pack(self, sequences: Sequence[torch.Tensor], pack: Pack, **options: Any) -> torch.Tensor:
        pack.on_call = self.between_layers
        row = torch.cat(list(sequences))
        return self.read_row(row, pack.outputs_at, position_ids=pack.position_ids, pack=pack, **options)

    def read_row(self, row: torch.Tensor, positions: torch.Tensor, **options: Any) -> torch.Tensor:
        """Returns (B, outputs) at B positions of one row of (T,) token ids or (T, D) input vectors."""
        inputs = {"inputs_embeds" if row.is_floating_point() else "input_ids": row[None]}
        if self._has_logits_to_keep and not ("pack" in options and self.last_layer_shortened):
            options["logits_to_keep"] = positions
        outputs = self._forward(**inputs, use_cache=False, **options)[0][0]  # a cache would be wrong for a packed row
        return outputs if len(outputs) == len(positions) else outputs[positions]

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[torch.Tensor]) -> DecodeState:
        """Reads the sequences and keeps their keys and values, for decode steps."""
        return DecodeState(self._forward, self._model.config, sequences)

    def _forward(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        """Returns the model's output. Its first element is the logits or, without a head, the last hidden states."""
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self.autocast):
            return self._model(**inputs)


def shorten_last_layer(model: PreTrainedModel) -> Callable[[], None] | None:
    """Makes the last layer compute, after the attention of a packed row, the last positions of the sequences only.

    A pass takes .83 to .92 of the time with 3 to 7 layers, and .97 with 30; the bundled PE-Rank has 3.

    Returns:
        A function that undoes it; None if the layers are not built as those of Llama, Mistral, Qwen2 and Qwen3.
    """
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        return None
    layer: Any = layers[-1]
    if {name for name, _ in layer.named_children()} != _KNOWN_LAYER_MODULES:
        return None
    full_forward = layer.forward

    def forward(hidden: torch.Tensor, **options: Any) -> torch.Tensor:
        """(1, T, D) → (1, B, D) for a packed row; a decode step, which has no pack, is computed in full."""
        if "pack" not in options:
            return cast(torch.Tensor, full_forward(hidden, **options))
        pack: Pack = options["pack"]
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden), last_only=True, **options)
        last = (hidden + attended)[:, pack.outputs_at]
        result: torch.Tensor = last + layer.mlp(layer.post_attention_layernorm(last))
        return result

    layer.forward = forward
    return lambda: setattr(layer, "forward", full_forward)
