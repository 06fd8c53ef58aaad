"""Linear layers by oneDNN with reordered weights, which in float32 on a CPU are faster than torch's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

#: The modules of a layer whose linear layers are changed, of decoders, ModernBERT and BERT's family; those of other
#: modules may be read by their weights.
_MODULES = ("self_attn", "mlp", "attn", "attention", "intermediate", "output")
#: Linear layers of DeBERTa that are read by their weights.
_READ_BY_WEIGHTS = ("in_proj",)
#: The number of rows for which oneDNN chooses the order of a weight. Other numbers work, too.
_ROWS = 1024


def use_onednn(model: PreTrainedModel) -> None:
    """Makes oneDNN compute the linear layers of attention and MLP, if the model is in float32 on a CPU.

    torch itself calls MKL there, which does less than half as many operations per second on some AMD processors. The
    model can then be neither trained nor saved, nor run under autocast. Its results change by rounding.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return
    base: Any = model.base_model
    layers: Any = getattr(base, "layers", None) or getattr(getattr(base, "encoder", None), "layer", ())
    changed = (getattr(layer, name) for layer in layers for name in _MODULES if hasattr(layer, name))
    for name, linear in (each for module in changed for each in module.named_modules()):
        if type(linear) is nn.Linear and not name.endswith(_READ_BY_WEIGHTS):
            compute_by_onednn(linear)


def compute_by_onednn(linear: nn.Linear) -> None:
    """Brings the weight of a float32 layer into the order in which oneDNN reads it, and computes the layer by it."""
    weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    linear.forward = partial(  # type: ignore[method-assign]
        torch.ops.mkldnn._linear_pointwise, W=weight, B=linear.bias, attr="none", scalars=[], algorithm=""
    )
