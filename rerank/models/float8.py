"""Linear layers with 8-bit floating-point products, which some GPUs compute at twice the rate of bfloat16."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.errors import ConfigError
from rerank.models.onednn import linears_of_layers

#: The compute capability of the first GPUs that multiply such numbers: Ada, and after it Hopper.
_CAPABILITY = (8, 9)
#: Rows and columns of a weight are multiples of this.
_MULTIPLE = 16


def has_float8(device: torch.device) -> bool:
    """Returns True if the device multiplies 8-bit floating-point numbers."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY


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
    """Makes the linear layers of attention and MLP compute in float8 (e4m3); the rest of the model stays.

    Weights are rounded once, with a scale for each row, and inputs in every pass, with a scale for each position.
    """
    linears = {
        linear for linear in linears_of_layers(model) if not any(size % _MULTIPLE for size in linear.weight.shape)
    }
    for module in list(model.modules()):
        for name, child in module.named_children():
            if child in linears:
                setattr(module, name, Float8Linear(child))


class Float8Linear(nn.Module):
    """A linear layer whose product is computed in float8. Tensors of plain types compile once for all layers."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = _rounded(linear.weight.detach())
        self.weight = nn.Buffer(weight)
        self.scale = nn.Buffer(scale.T.contiguous())  # (1, out)
        self.bias = linear.bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(…, in) bfloat16 → (…, out) bfloat16."""
        rows, scale = _rounded(inputs.reshape(-1, inputs.shape[-1]))
        outputs = torch._scaled_mm(
            rows, self.weight.T, scale_a=scale, scale_b=self.scale, out_dtype=inputs.dtype, use_fast_accum=True
        )
        outputs = outputs if self.bias is None else outputs + self.bias
        return outputs.reshape(*inputs.shape[:-1], -1)


def _rounded(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, K) → (N, K) float8 numbers and (N, 1) float32 scales; their product is about `rows`."""
    most = torch.finfo(torch.float8_e4m3fn).max
    scale = rows.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / most
    return (rows.float() / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale
