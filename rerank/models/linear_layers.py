"""Faster linear layers: by oneDNN with reordered weights on a CPU, in float8 on a GPU that supports it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.errors import ConfigError

#: oneDNN and torch each cache some megabytes for each of the last 1,024 shapes: 1.5 GB after 300 requests of various
#: lengths. The layers of a model need few shapes. The libraries read these variables at the first computation.
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "16")

#: Modules of a transformer's layer (in decoders, ModernBERT and BERT's family) whose linear layers are replaced. In
#: other modules, other code may read the weights directly.
_MODULES = ("self_attn", "mlp", "attn", "attention", "intermediate", "output")
#: Linear layers of DeBERTa whose weights other code reads directly.
_READ_BY_WEIGHTS = ("in_proj",)
#: oneDNN reorders weights for inputs with this number of rows; other inputs work, too.
_ROWS = 1024
#: The lowest compute capability of GPUs that multiply 8-bit floating-point numbers: Ada's; Hopper came later.
_FLOAT8_CAPABILITY = (8, 9)
#: Rows and columns of a weight in float8 are multiples of this.
_FLOAT8_MULTIPLE = 16


def use_onednn(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Replaces the computation of linear layers (attention and MLP) on a CPU by oneDNN, if torch has it.

    In float32, torch itself calls MKL, which does less than half as many operations per second on some AMD processors;
    the results change by rounding. In bfloat16 they equal autocast's, which rounds the weights in each pass.
    """
    if not torch.backends.mkldnn.is_available():
        return
    for linear in linears_of_layers(model):
        compute_by_onednn(linear, dtype)


def linears_of_layers(model: PreTrainedModel) -> Iterator[nn.Linear]:
    """Yields the linear layers of attention and MLP whose weights no other code reads."""
    base: Any = model.base_model
    layers: Any = getattr(base, "layers", None) or getattr(getattr(base, "encoder", None), "layer", ())
    changed = (getattr(layer, name) for layer in layers for name in _MODULES if hasattr(layer, name))
    for name, linear in (named_module for module in changed for named_module in module.named_modules()):
        if type(linear) is nn.Linear and not name.endswith(_READ_BY_WEIGHTS):
            yield linear


def compute_by_onednn(linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
    """Reorders the weight of a float32 layer for oneDNN, which computes the layer in `dtype` from then on."""
    weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().to(dtype), _ROWS)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    bias = None if linear.bias is None else linear.bias.detach().to(dtype)
    forward = partial(torch.ops.mkldnn._linear_pointwise, W=weight, B=bias, attr="none", scalars=[], algorithm="")
    if dtype != torch.float32:
        forward = partial(_rounded, forward, dtype)
    linear.forward = forward  # type: ignore[method-assign]


def _rounded(forward: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    return forward(x.to(dtype))


def has_float8(device: torch.device) -> bool:
    """Returns True if the device multiplies 8-bit floating-point numbers."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FLOAT8_CAPABILITY


def check_float8(device: torch.device) -> None:
    """Raises: ConfigError if the device does not multiply 8-bit floating-point numbers."""
    if has_float8(device):
        return
    found = f"device {device.type}"
    if device.type == "cuda":
        found = f"compute capability {'.'.join(map(str, torch.cuda.get_device_capability(device)))}"
    raise ConfigError(
        f"precision float8 needs a GPU of compute capability 8.9 (Ada, Hopper), this is {found}; use auto"
    )


def use_float8(model: PreTrainedModel) -> None:
    """Replaces the linear layers of attention and MLP by layers in float8 (e4m3); the rest of the model stays.

    Some GPUs multiply float8 at twice the rate of bfloat16. Weights are rounded once, with a scale for each row, and
    inputs in every pass, with a scale for each position.
    """
    linears = {
        linear
        for linear in linears_of_layers(model)
        if not any(size % _FLOAT8_MULTIPLE for size in linear.weight.shape)
    }
    for module in list(model.modules()):
        for name, child in module.named_children():
            if child in linears:
                setattr(module, name, Float8Linear(child))


class Float8Linear(nn.Module):
    """A linear layer whose product is computed in float8.

    Its tensors have plain types, so that torch compiles one function for all such layers.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = _to_float8(linear.weight.detach())
        self.weight = nn.Buffer(weight)
        self.scale = nn.Buffer(scale.T.contiguous())  # (1, out)
        self.bias = linear.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(…, in) bfloat16 → (…, out) bfloat16."""
        rows, scale = _to_float8(inputs.reshape(-1, inputs.shape[-1]))
        outputs = torch._scaled_mm(
            rows, self.weight.T, scale_a=scale, scale_b=self.scale, out_dtype=inputs.dtype, use_fast_accum=True
        )
        outputs = outputs if self.bias is None else outputs + self.bias
        return outputs.reshape(*inputs.shape[:-1], -1)


def _to_float8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, K) → (N, K) float8 numbers and (N, 1) float32 scales; their product is about `rows`."""
    most = torch.finfo(torch.float8_e4m3fn).max
    scale = rows.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / most
    return (rows.float() / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale
