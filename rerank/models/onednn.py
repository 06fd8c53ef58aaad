"""Computes linear layers by oneDNN with reordered weights, which is faster on a CPU than torch's own way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

#: oneDNN and torch each keep what they computed for the last 1,024 shapes, some megabytes for each: 1.5 GB after 300
#: requests of varied lengths. The layers of a model share a few shapes. Read at the first computation.
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "16")

#: The modules of a layer whose linear layers are changed, of decoders, ModernBERT and BERT's family. In other modules,
#: something else may read a linear layer's weights.
_MODULES = ("self_attn", "mlp", "attn", "attention", "intermediate", "output")
#: Linear layers of DeBERTa that are read by their weights.
_READ_BY_WEIGHTS = ("in_proj",)
#: oneDNN chooses the order of a weight for this number of rows. Other numbers work, too.
_ROWS = 1024


def use_onednn(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Makes oneDNN compute the linear layers of attention and MLP of a model on a CPU, if torch was built with it.

    In float32, torch itself calls MKL, which does less than half as many operations per second on some AMD processors;
    the results change by rounding. In bfloat16 they equal autocast's, which rounds the weights in each pass.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for linear in linears_of_layers(model):
        compute_by_onednn(linear, dtype)


def linears_of_layers(model: PreTrainedModel) -> Iterator[nn.Linear]:
    """Yields the linear layers of attention and MLP that are read by their output only."""
    base: Any = model.base_model
    layers: Any = getattr(base, "layers", None) or getattr(getattr(base, "encoder", None), "layer", ())
    changed = (getattr(layer, name) for layer in layers for name in _MODULES if hasattr(layer, name))
    for name, linear in (named_module for module in changed for named_module in module.named_modules()):
        if type(linear) is nn.Linear and not name.endswith(_READ_BY_WEIGHTS):
            yield linear


def compute_by_onednn(linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
    """Reorders the weight of a float32 layer for oneDNN, which then computes the layer."""
    weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().to(dtype), _ROWS)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    bias = None if linear.bias is None else linear.bias.detach().to(dtype)
    forward = partial(torch.ops.mkldnn._linear_pointwise, W=weight, B=bias, attr="none", scalars=[], algorithm="")
    if dtype != torch.float32:
        forward = partial(_rounded, forward, dtype)
    linear.forward = forward  # type: ignore[method-assign]


def _rounded(forward: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    return forward(x.to(dtype))
