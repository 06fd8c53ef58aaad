"""Speeds up training steps on a GPU: few lengths of batches, compiled layers, frozen weights in bfloat16."""

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

#: Batches are padded to a multiple of this number of tokens: cuDNN's attention plans some 38 ms for each new shape.
_BUCKET_TOKENS = 128
#: Number of positions of a model whose configuration has no limit.
_UNLIMITED = 2**31
#: Name of a tensor (B, T) of a collator → the value of its padding. Padding has no effect, because it is masked or
#: comes after the last token of a causal model.
_PADDING = {
    **dict.fromkeys(("input_ids", "text_input_ids", "prompt_ids", "attention_mask", "prompt_mask"), 0),
    "labels": IGNORE_INDEX,
}


@dataclass(frozen=True)
class BucketCollator:
    """Pads the batches of a collator to multiples of 128 tokens, so that there are few shapes.

    Args:
        collate: items → their batch.
        max_tokens: largest length of a batch after the padding.
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
    """Converts frozen weights to bfloat16 if that changes none, as for models that were published in bfloat16.

    Mixed precision computes in bfloat16 anyway, and would convert the weights in every step.
    """
    frozen = [weight for weight in model.parameters() if not weight.requires_grad and weight.dtype == torch.float32]
    if all(torch.equal(weight.bfloat16().float(), weight) for weight in frozen):
        for weight in frozen:
            weight.data = weight.data.bfloat16()


def positions_of(model: nn.Module) -> int:
    """The largest number of tokens that all transformers in a model can read."""
    configs = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    return min(
        (int(getattr(config, "max_position_embeddings", None) or _UNLIMITED) for config in configs), default=_UNLIMITED
    )


class CompiledLayers:
    """The layers of a model's transformers, compiled for training steps, with one graph for all layers.

    Compilation fuses norms, rotations, activations, residuals and adapters. The first step takes some 10 to 60 s more.
    Evaluations run without compiled layers. If the first step fails, no step has them, and a warning has the
    reason.
    """

    def __init__(self, model: nn.Module) -> None:
        set_up_compiler()
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        self._calls: Mapping[Any, Any] = {layer: torch.compile(layer._call_impl, dynamic=True) for layer in layers}
        self._has_run = False

    def run(self, step: Callable[[], T], undo: Callable[[], object]) -> T:
        """Runs a step with compiled layers, and returns its result.

        Args:
            step: runs the model; called again without compiled layers if the compiler makes the first step fail.
            undo: resets the state that a failed step may have changed, such as gradients.
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
