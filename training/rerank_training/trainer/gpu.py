"""Makes a step of training fast on a GPU: few lengths of a batch, compiled layers, frozen weights in bfloat16."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rerank.errors import RerankError
from rerank.models.compiled_layers import set_up_compiler
from rerank_training.trainer.losses import IGNORE_INDEX
from rerank_training.trainer.processes import is_lost_process

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Lengths of batches are multiples of this many tokens: attention of cuDNN plans some 38 ms for every new shape.
_BUCKET_TOKENS = 128
#: Positions of a model that states none.
_ANY = 2**31
#: Tensors (B, T) of all collators, with the value of their padding. No model reads it: it is after the last token of
#: a causal model, or masked.
_PADDING = {
    **dict.fromkeys(("input_ids", "text_input_ids", "prompt_ids", "attention_mask", "prompt_mask"), 0),
    "labels": IGNORE_INDEX,
}


@dataclass(frozen=True)
class BucketCollator:
    """Pads the batches of a collator at their ends, so that few lengths exist.

    Args:
        collate: makes batches.
        max_tokens: a length is not padded beyond it.
    """

    collate: Callable[[Sequence[Any]], dict[str, Tensor]]
    max_tokens: int

    def __call__(self, items: Sequence[Any]) -> dict[str, Tensor]:
        batch = self.collate(items)
        return {name: self._padded(name, tensor) for name, tensor in batch.items()}

    def _padded(self, name: str, tensor: Tensor) -> Tensor:
        if name not in _PADDING:
            return tensor
        tokens = tensor.shape[1]
        bucket = -(-tokens // _BUCKET_TOKENS) * _BUCKET_TOKENS
        return pad(tensor, (0, max(0, min(bucket, self.max_tokens) - tokens)), value=_PADDING[name])


def halve_frozen_weights(model: nn.Module) -> None:
    """Keeps frozen weights in bfloat16 if that changes none of them, as it is for models that are published so.

    Mixed precision computes in bfloat16 anyway, and would convert them in every step.
    """
    frozen = [weight for weight in model.parameters() if not weight.requires_grad and weight.dtype == torch.float32]
    if all(torch.equal(weight.bfloat16().float(), weight) for weight in frozen):
        for weight in frozen:
            weight.data = weight.data.bfloat16()


def positions_of(model: nn.Module) -> int:
    """The most tokens that every transformer in a model reads."""
    configs = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    return min((int(getattr(config, "max_position_embeddings", None) or _ANY) for config in configs), default=_ANY)


class CompiledLayers:
    """The layers of a model's transformers, compiled for steps of a training, in one graph for all layers.

    That fuses norms, rotations, activations, residuals and adapters, for some 10 to 60 s at the first step. Evaluations
    run as they are. If the first step fails, all do, with a line in the log.
    """

    def __init__(self, model: nn.Module) -> None:
        set_up_compiler()
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        self._calls: Mapping[Any, Any] = {layer: torch.compile(layer._call_impl, dynamic=True) for layer in layers}
        self._has_run = False

    def run(self, step: Callable[[], T], undo: Callable[[], object]) -> T:
        """Returns what a step returns, which calls the layers.

        Args:
            step: is called again if its first call fails because of the compiler.
            undo: takes back what a failed step may have left.
        """
        try:
            with self._compiled():
                result = step()
        except Exception as error:  # compilers of torch, Triton and C++ raise almost anything
            is_of_step = isinstance(error, RerankError | torch.OutOfMemoryError) or is_lost_process(error)
            if self._has_run or is_of_step:
                raise
            reason = " ".join(str(error).split())[:300]
            logger.warning("layers are not compiled, so steps are slower: %s: %s", type(error).__name__, reason)
            self._calls = {}
            undo()
            result = step()
        self._has_run = True
        return result

    @contextmanager
    def _compiled(self) -> Iterator[None]:
        for layer, call in self._calls.items():
            layer._compiled_call_impl = call  # as nn.Module.compile does
        try:
            yield
        finally:
            for layer in self._calls:
                layer._compiled_call_impl = None
