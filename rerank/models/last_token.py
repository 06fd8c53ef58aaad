"""Many sequences through a transformer in one forward pass, read behind the last position of each."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from rerank.models.packed_attention import PACKED, KVCache, Pack
from rerank.types import Batching

log = logging.getLogger(__name__)

#: The probe's sequences: short, for a model of 7B on a CPU must start too.
_PROBE_LENGTHS = (3, 11, 7)
#: How far packed outputs may be off in float32 and in bfloat16, in standard deviations of the outputs. One sequence
#: that reads another is off by 1 or more.
_EXACT, _HALF = 1e-4, 2e-2
#: Or in units of what a sequence differs by when the same kernels see it in a longer row, up to this many deviations.
_NOISES, _MOST_NOISE = 4, 0.2
#: What a decoder layer must consist of, so that `_shorten` knows how it computes.
_LAYER_PARTS = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}


class LastTokenReader:
    """Reads a model at the last positions, without padding and without a mask.

    At load it packs a few random sequences and compares with reading them one by one. A model that cannot be packed
    (no AttentionInterface, a state that runs through the row, position embeddings that depend on the row's length)
    reads one sequence at a time. A packed model must not be called by others any more.

    Args:
        model: a transformer with or without a head; its output at the last position is what is read.
        autocast: compute in bfloat16 what keeps its quality so, on a CPU with float32 weights.

    Attributes:
        batching: how sequences are read.
        problem: why not packed; empty if packed.
        last_layer_short: whether the last layer's MLP computes nothing but what is read.
    """

    def __init__(self, model: PreTrainedModel, autocast: bool = False) -> None:
        self._model = model
        self._autocast = autocast
        self._takes_places = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.last_layer_short = False
        self.batching: Batching = "one_by_one"
        self.problem = self._pack()
        if not self.problem:
            self.batching = "packed"
        else:
            log.warning("%s reads one window at a time: %s", type(model).__name__, self.problem)

    @torch.inference_mode()
    def read(self, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
        """(B, outputs) of B sequences, each (T,) token ids or (T, D) input vectors, on the model's device."""
        return self._read_packed(sequences)[0] if self.batching == "packed" else self._read_each(sequences)

    def begin(self, sequences: Sequence[torch.Tensor], steps: int) -> DecodeState:
        """Reads them as `read` does, and keeps what is needed to read on, up to so many positions more."""
        if self.batching == "packed":
            return _Packed(self, sequences, steps)
        return CachedDecodeState(self._forward, self._model.config, sequences)

    def _read_packed(self, sequences: Sequence[torch.Tensor], **options: Any) -> tuple[torch.Tensor, Pack]:
        pack = Pack([len(sequence) for sequence in sequences], sequences[0].device)
        row = torch.cat(list(sequences))
        return self._outputs(row, pack.last, position_ids=pack.position_ids, pack=pack, **options), pack

    def _read_each(self, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
        lasts = (torch.tensor([len(sequence) - 1], device=sequence.device) for sequence in sequences)
        return torch.cat([self._outputs(sequence, last) for sequence, last in zip(sequences, lasts, strict=True)])

    def _outputs(self, row: torch.Tensor, last: torch.Tensor, **options: Any) -> torch.Tensor:
        """(B, outputs) at the places `last` of one row. A cache would be of no use, and makes packing wrong."""
        inputs = {"inputs_embeds" if row.is_floating_point() else "input_ids": row[None]}
        if self._takes_places and not ("pack" in options and self.last_layer_short):
            options["logits_to_keep"] = last
        outputs = self._forward(**inputs, use_cache=False, **options)[0][0]
        return outputs if len(outputs) == len(last) else outputs[last]

    def _forward(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        """What the model gives: first the logits, or the last states."""
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._autocast):
            return self._model(**inputs)

    @torch.inference_mode()
    def _pack(self) -> str:
        """Makes the model read packs, if it can; otherwise leaves it as it was and says why."""
        if problem := _problem_of(self._model.config):
            return problem
        sequences = _random_sequences(self._model)
        alone = self._read_each(sequences)
        tolerance = self._tolerance(sequences, alone)
        own = self._model.config._attn_implementation
        self._model.set_attn_implementation(PACKED)
        problem = self._difference(sequences, alone, tolerance)
        if problem:
            self._model.set_attn_implementation(own)
            return problem
        if restore := _shorten(self._model):
            self.last_layer_short = True
            if self._difference(sequences, alone, tolerance):
                restore()
                self.last_layer_short = False
        return ""

    def _tolerance(self, sequences: Sequence[torch.Tensor], alone: torch.Tensor) -> float:
        """How far packed outputs may be off: rounding, and the noise of kernels that see another number of rows."""
        exact = self._model.dtype == torch.float32 and not self._autocast
        deviation = alone.std().item()
        noise = (self._read_in_longer_rows(sequences) - alone).abs().max().item()
        return max((_EXACT if exact else _HALF) * deviation, min(_NOISES * noise, _MOST_NOISE * deviation))

    def _difference(self, sequences: Sequence[torch.Tensor], alone: torch.Tensor, tolerance: float) -> str:
        """How packed sequences fail to give what they give alone; empty if they do not."""
        try:
            packed, pack = self._read_packed(sequences)
        except Exception as error:  # whatever a foreign architecture does with a packed row, it serves without
            return f"a packed row fails in its forward: {error!r}"
        if problem := _layers_missed(self._model.config, pack):
            return problem
        off = (packed - alone).abs().max().item()
        return "" if off <= tolerance else f"outputs of packed sequences are off by {off:.2g}, {tolerance:.2g} allowed"

    def _read_in_longer_rows(self, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
        """What each sequence gives with others behind it, which a causal model does not read: rounding differs."""
        behind = torch.cat(list(sequences))
        lasts = [torch.tensor([len(sequence) - 1], device=sequence.device) for sequence in sequences]
        rows = [torch.cat([sequence, behind]) for sequence in sequences]
        return torch.cat([self._outputs(row, last) for row, last in zip(rows, lasts, strict=True)])


class DecodeState(Protocol):
    """B sequences that are read on, a position a step.

    Attributes:
        states: (B, outputs) behind the last position that was read.
    """

    states: torch.Tensor

    def read(self, inputs: torch.Tensor) -> None:
        """Reads one (B, D) input vector more of each sequence."""
        ...


class _Packed:
    """All sequences in one forward pass a step, without padding them first and without a cache that grows."""

    def __init__(self, reader: LastTokenReader, sequences: Sequence[torch.Tensor], steps: int) -> None:
        self._reader = reader
        self._kv_cache = KVCache([len(sequence) for sequence in sequences], steps, sequences[0].device)
        self.states = reader._read_packed(sequences, kv_cache=self._kv_cache)[0]

    def read(self, inputs: torch.Tensor) -> None:
        kv_cache = self._kv_cache
        options = {"position_ids": kv_cache.position_ids, "kv_cache": kv_cache, "use_cache": False}
        self.states = self._reader._forward(inputs_embeds=inputs[:, None], **options)[0][:, -1]
        kv_cache.advance()


class CachedDecodeState:
    """With transformers' own cache, and a model that nobody has changed: sequences of one length go together.

    Args:
        model: a transformer, or what calls it.
        sequences: (T, D) input vectors each.
    """

    def __init__(self, model: Callable[..., Any], config: PretrainedConfig, sequences: Sequence[torch.Tensor]) -> None:
        self._model = model
        places: dict[int, list[int]] = {}
        for place, sequence in enumerate(sequences):
            places.setdefault(len(sequence), []).append(place)
        self._groups = list(places.values())
        self._caches = [DynamicCache(config=config) for _ in self._groups]
        self._read([torch.stack([sequences[place] for place in group]) for group in self._groups])

    def read(self, inputs: torch.Tensor) -> None:
        self._read([inputs[group, None] for group in self._groups])

    def _read(self, rows: Sequence[torch.Tensor]) -> None:
        """(B of the group, T, D) of each group."""
        outputs = [
            self._model(inputs_embeds=row, past_key_values=cache, use_cache=True)[0][:, -1]
            for row, cache in zip(rows, self._caches, strict=True)
        ]
        states = torch.cat(outputs)
        self.states = torch.empty_like(states)
        self.states[[place for group in self._groups for place in group]] = states


def _random_sequences(model: PreTrainedModel) -> list[torch.Tensor]:
    embeddings = cast(nn.Embedding, model.get_input_embeddings())
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randint(embeddings.weight.shape[0], (length,), generator=draw).to(model.device)
        for length in _PROBE_LENGTHS
    ]


def _problem_of(config: PretrainedConfig) -> str:
    """What rules packing out although short sequences would not show it; empty if nothing does."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {one.get("rope_type") for one in (rope, *rope.values()) if isinstance(one, dict)}
    if moving := kinds & {"dynamic", "longrope"}:
        return f"its {moving.pop()} position embeddings depend on the length of the row"
    layers = set(getattr(config, "layer_types", None) or ())
    if unknown := layers - {"full_attention", "sliding_attention"}:
        return f"its layers are of kinds that packing does not know: {', '.join(sorted(unknown))}"
    return ""


def _layers_missed(config: PretrainedConfig, pack: Pack) -> str:
    """What layers did not do that they should have; empty if nothing. Short sequences fit any sliding window."""
    layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    windowed = kinds.count("sliding_attention") if getattr(config, "sliding_window", None) else 0
    if pack.calls != layers:
        return f"packed attention ran in {pack.calls} of its {layers} layers"
    if pack.windowed < windowed:
        return f"the sliding window reached {pack.windowed} of {windowed} layers"
    return ""


def _shorten(model: PreTrainedModel) -> Callable[[], None] | None:
    """Lets the last layer compute, of a packed row, nothing behind its attention but what is read.

    Returns:
        What takes it back; None if the layers are not those of Llama, Mistral, Qwen2 and Qwen3.
    """
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList) or {name for name, _ in layers[-1].named_children()} != _LAYER_PARTS:
        return None
    layer: Any = layers[-1]
    whole = layer.forward

    def forward(hidden: torch.Tensor, **options: Any) -> torch.Tensor:
        """(1, T, D) → (1, B, D). A step behind a pack is read whole."""
        if "pack" not in options:
            return cast(torch.Tensor, whole(hidden, **options))
        pack: Pack = options["pack"]
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden), last_only=True, **options)
        read = (hidden + attended)[:, pack.last]
        result: torch.Tensor = read + layer.mlp(layer.post_attention_layernorm(read))
        return result

    layer.forward = forward
    return lambda: setattr(layer, "forward", whole)
