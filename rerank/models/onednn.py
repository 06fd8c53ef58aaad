"""Linear layers of oneDNN with reordered weights, which in float32 on a CPU are faster than torch's own."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

#: The modules of a decoder layer whose linear layers are replaced; those of other modules may be read by their weights.
_MODULES = ("self_attn", "mlp")
#: The number of rows for which oneDNN chooses the order of a weight. Other numbers work, too.
_ROWS = 1024


class OneDNNLinear(nn.Module):
    """A linear layer with its weight in the order in which oneDNN reads it; for inference in float32 on a CPU.

    torch's own layer calls MKL there, which does less than half as many operations per second on some AMD processors.

    Args:
        linear: the layer to replace.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self._bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, inputs) → (…, outputs)."""
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return result


def use_onednn(model: PreTrainedModel) -> None:
    """Replaces the linear layers of attention and MLP by OneDNNLinear, if the model is in float32 on a CPU.

    The model can then be neither trained nor saved, nor run under autocast. Its results change by rounding.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return
    for layer in getattr(model.base_model, "layers", ()):
        for name in _MODULES:
            if (module := getattr(layer, name, None)) is not None:
                _replace_linear_layers(module)


def _replace_linear_layers(module: nn.Module) -> None:
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, OneDNNLinear(child))
        else:
            _replace_linear_layers(child)
