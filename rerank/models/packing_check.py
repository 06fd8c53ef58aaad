"""Packs a model's sequences only if a check at load gives the outputs of reading them one by one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from rerank.config import Precision
from rerank.models.last_token import LastTokenReader, shorten_last_layer
from rerank.models.packed_attention import PACKED_ATTENTION, Pack
from rerank.models.precision import compute_in, uses_autocast

log = logging.getLogger(__name__)

#: Lengths of the sequences: short, because models of 7B parameters on a CPU must start too.
_CHECK_LENGTHS = (3, 11, 7)
#: Allowed difference of packed outputs in float32 and in bfloat16, in standard deviations of the outputs. A sequence
#: that attends to another one differs by 1 or more.
_FLOAT32_TOLERANCE, _BFLOAT16_TOLERANCE = 1e-4, 2e-2
#: Or as a multiple of the difference that a longer row alone makes, up to this many standard deviations.
_NOISE_FACTOR, _MAX_NOISE_TOLERANCE = 4, 0.2


@torch.inference_mode()
def make_last_token_reader(model: PreTrainedModel, precision: Precision = "float32") -> LastTokenReader:
    """Returns a reader that packs sequences if the model allows it, and sets the precision of a model on a CPU.

    A few random sequences are read one by one and packed. Where the outputs differ, or the packed row fails, the model
    stays as it is and reads one sequence at a time, and a warning gives the reason: no AttentionInterface, a recurrent
    state that runs through the row, position embeddings that depend on the row's length. The model must then be called
    through the reader only, because its linear layers and its attention implementation are others.

    Args:
        model: a transformer with or without a head.
        precision: see `compute_in`; without `auto`.

    Raises:
        ValueError: the outputs are not finite.
    """
    reader = checked_reader(model)
    compute_in(model, precision)  # after the check, because rounding enlarges differences in the last bit
    reader.autocast = uses_autocast(model.device, precision)
    return reader


def checked_reader(model: PreTrainedModel) -> LastTokenReader:
    """As `make_last_token_reader`, of a model that computes in its precision already."""
    one_by_one = LastTokenReader(model)
    if problem := _unsupported_config(model.config):
        return _with_warning(one_by_one, model, problem)
    check = _Check.of(one_by_one, model)
    implementation = model.config._attn_implementation
    model.set_attn_implementation(PACKED_ATTENTION)
    packed = LastTokenReader(model, packed=True)
    if problem := check.problem_of(packed):
        model.set_attn_implementation(implementation)
        return _with_warning(one_by_one, model, problem)
    if restore := shorten_last_layer(model):
        shortened = LastTokenReader(model, packed=True, last_layer_shortened=True)
        if not check.problem_of(shortened):
            return shortened
        restore()
    return packed


def _with_warning(reader: LastTokenReader, model: PreTrainedModel, problem: str) -> LastTokenReader:
    log.warning("%s reads one window at a time, because it cannot be packed: %s", type(model).__name__, problem)
    return reader


@dataclass(frozen=True)
class _Check:
    """Random sequences, their outputs when read one by one, and the allowed difference of packed outputs."""

    config: PretrainedConfig
    sequences: list[torch.Tensor]
    expected: torch.Tensor
    tolerance: float

    @classmethod
    def of(cls, one_by_one: LastTokenReader, model: PreTrainedModel) -> _Check:
        sequences = _random_sequences(model)
        expected = one_by_one.read(sequences)
        if not expected.isfinite().all():
            raise ValueError("its weights give outputs that are not finite")
        deviation = expected.std().item()
        noise = (_read_in_longer_rows(one_by_one, sequences) - expected).abs().max().item()
        rounding = (_FLOAT32_TOLERANCE if model.dtype == torch.float32 else _BFLOAT16_TOLERANCE) * deviation
        tolerance = max(rounding, min(_NOISE_FACTOR * noise, _MAX_NOISE_TOLERANCE * deviation))
        return cls(model.config, sequences, expected, tolerance)

    def problem_of(self, packed: LastTokenReader) -> str:
        """Returns why packed sequences must not be used, or an empty text if their outputs are those of one by one."""
        try:
            outputs, pack = packed.read_packed(self.sequences)
        except Exception as error:  # whatever a foreign architecture raises on a packed row, it can be served unpacked
            return f"its forward fails on a packed row: {error!r}"
        if problem := _skipped_layers(self.config, pack):
            return problem
        difference = (outputs - self.expected).abs().max().item()
        if difference <= self.tolerance:
            return ""
        return f"outputs of packed sequences differ by {difference:.2g}, {self.tolerance:.2g} is allowed"


def _random_sequences(model: PreTrainedModel) -> list[torch.Tensor]:
    embeddings = cast(nn.Embedding, model.get_input_embeddings())
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(embeddings.weight.shape[0], (length,), generator=generator).to(model.device)
        for length in _CHECK_LENGTHS
    ]


def _read_in_longer_rows(reader: LastTokenReader, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns (B, outputs) of sequences that others follow, which a causal model ignores: only rounding differs."""
    following = torch.cat(list(sequences))
    lasts = [torch.tensor([len(sequence) - 1], device=sequence.device) for sequence in sequences]
    rows = [torch.cat([sequence, following]) for sequence in sequences]
    return torch.cat([reader.read_row(row, last) for row, last in zip(rows, lasts, strict=True)])


def _unsupported_config(config: PretrainedConfig) -> str:
    """Returns why a configuration excludes packing where short sequences would not show it, or an empty text."""
    rope = getattr(config, "rope_parameters", None) or {}
    rope_types = {one.get("rope_type") for one in (rope, *rope.values()) if isinstance(one, dict)}
    if length_dependent := rope_types & {"dynamic", "longrope"}:
        return f"its {length_dependent.pop()} position embeddings depend on the length of the row"
    layer_types = set(getattr(config, "layer_types", None) or ())
    if unknown := layer_types - {"full_attention", "sliding_attention"}:
        return f"its layers are of types that packing does not know: {', '.join(sorted(unknown))}"
    return ""


def _skipped_layers(config: PretrainedConfig, pack: Pack) -> str:
    """Returns the problem if not all layers ran packed attention with their sliding windows, or an empty text.

    The sequences of the check are shorter than any window, so that their outputs would not show a missing one.
    """
    layers = config.num_hidden_layers
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    windowed = layer_types.count("sliding_attention") if getattr(config, "sliding_window", None) else 0
    if pack.calls != layers:
        return f"packed attention ran in {pack.calls} of its {layers} layers"
    if pack.windowed_calls < windowed:
        return f"the sliding window reached {pack.windowed_calls} of {windowed} layers"
    return ""
