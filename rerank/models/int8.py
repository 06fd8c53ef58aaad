"""Linear layers in int8 on a CPU: weights with one scale per output channel, inputs with one scale per token.

Products are summed in int32 by oneDNN. Weights are rounded once, at load, without calibration data; the scale of an
input row comes from the row itself (dynamic quantisation), so that no row's result depends on those beside it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.models.onednn import linears_of_layers

#: The largest magnitude of a quantised number; -128 is not used, so that signs are symmetric.
_LARGEST = 127
#: oneDNN multiplies unsigned inputs with signed weights; this is the zero among the unsigned ones.
_ZERO_POINT = 128
#: Smallest magnitude that a scale is computed from, so that a row of zeros has one.
_TINY = 1e-30


def use_int8(model: PreTrainedModel) -> None:
    """Makes the linear layers of attention and MLP compute in int8. The model can then be neither trained nor saved."""
    for linear in linears_of_layers(model):
        compute_in_int8(linear)


def compute_in_int8(linear: nn.Linear) -> None:
    """Rounds the weight of a layer to int8, brings it into oneDNN's order, and computes the layer by it."""
    weight, scales = quantize_weight(linear.weight.detach().float())
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    linear.weight = nn.Parameter(packed, requires_grad=False)
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    linear.forward = partial(int8_linear, packed, scales, zeros, linear.bias)  # type: ignore[method-assign]


def quantize_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, K) float32 weights → (N, K) int8 and (N,) float32 scales, whose product is the weight."""
    scales = weight.abs().amax(dim=1).clamp_min(_TINY) / _LARGEST
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(T, K) float32 inputs → (T, K) uint8 around 128 and (T, 1) float32 scales: x ≈ scale · (uint8 - 128)."""
    largest = torch.maximum(x.amax(dim=1, keepdim=True), x.amin(dim=1, keepdim=True).neg_()).clamp_min_(_TINY)
    rounded = (x * (_LARGEST / largest)).round_().to(torch.int8)  # torch converts to int8 faster than to uint8
    return rounded.view(torch.uint8).bitwise_xor_(_ZERO_POINT), largest / _LARGEST


def int8_linear(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    """(…, K) → (…, N) float32."""
    rows, row_scales = quantize_rows(x.reshape(-1, x.shape[-1]).float())
    y = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, _ZERO_POINT, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    y.mul_(row_scales)
    return (y if bias is None else y.add_(bias)).view(*x.shape[:-1], len(scales))
