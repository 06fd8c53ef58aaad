"""The number format that a model computes in, by its device, its width and what the processor can do."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.config import Precision
from rerank.errors import ConfigError
from rerank.models.int8 import use_int8
from rerank.models.onednn import use_onednn
from rerank.types import EncoderDtype

M = TypeVar("M", bound=nn.Module)

#: The smallest hidden size for which `auto` is bfloat16 on a CPU that has it. Rows of 1,450 tokens gain at every width
#: (docs/evidence/performance.md, "Precision"), but narrow models are those that read short rows, such as the bundled
#: PE-Rank (384), and these gain nothing.
_MIN_BFLOAT16_WIDTH = 512


def pick_precision(model: PreTrainedModel, precision: Precision) -> Precision:
    """The precision in which a loaded model shall compute. `auto` is bfloat16 on CUDA.

    On a CPU `auto` is bfloat16 if the processor multiplies it and the model is wide enough to gain, otherwise float32.

    Raises:
        ConfigError: int8 is configured for a device that it is not made for.
    """
    if precision == "int8":
        check_int8(model.device)
    if precision != "auto":
        return precision
    if model.device.type != "cpu":
        return "bfloat16"
    width = getattr(model.config.get_text_config(), "hidden_size", 0)
    return "bfloat16" if has_bfloat16() and width >= _MIN_BFLOAT16_WIDTH else "float32"


def compute_in(model: PreTrainedModel, precision: Precision) -> None:
    """Makes the linear layers of a model with float32 weights on a CPU compute in a precision; other models stay.

    The model can then be neither trained nor saved. In bfloat16 and int8 what is beside these layers computes in
    bfloat16 under autocast, see `uses_autocast`.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return
    if precision == "int8":
        use_int8(model)
    elif precision == "float32":
        use_onednn(model, torch.float32)
    elif has_bfloat16():
        use_onednn(model, torch.bfloat16)


def pick_encoder_dtype(device: torch.device, dtype: EncoderDtype) -> EncoderDtype:
    """The type in which an encoder computes. `auto` is bfloat16 on a CPU that multiplies it, otherwise float32.

    Unlike narrow rankers, narrow encoders gain by bfloat16: they read rows of about a thousand tokens.

    Raises:
        ConfigError: int8 is asked for, and the processor or the device does not compute in it.
    """
    if dtype == "int8":
        check_int8(device)
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.type == "cpu" and has_bfloat16() else "float32"


def copy_computing_in(model: M, device: torch.device, dtype: EncoderDtype) -> M:
    """A copy of the model, on a CPU with other linear layers, see `compute_in`. It shares all other weights.

    Args:
        model: a transformer, or a module that contains one.
    """
    model = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    if device.type == "cpu":
        compute_in(next(module for module in model.modules() if isinstance(module, PreTrainedModel)), dtype)
    return model


def weights_dtype(device: torch.device, precision: Precision) -> torch.dtype:
    """float32 on the CPU at every precision, see `uses_autocast`; bfloat16 on CUDA unless float32 is configured."""
    return torch.float32 if device.type == "cpu" or precision == "float32" else torch.bfloat16


def uses_autocast(device: torch.device, precision: Precision) -> bool:
    """True if float32 weights compute in bfloat16: on a CPU, where the residual stream between layers stays float32.

    With `int8` it is what is computed beside the linear layers.
    """
    return device.type == "cpu" and (precision == "bfloat16" or (precision == "int8" and has_bfloat16()))


def has_bfloat16() -> bool:
    """True if the processor multiplies bfloat16: by AVX512_BF16, which those with AMX have, too."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()


def has_vnni() -> bool:
    """True if the processor multiplies int8 exactly and fast."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_vnni_supported()


def check_int8(device: torch.device) -> None:
    """Raises: ConfigError where int8 would be slower or, without VNNI, overflow."""
    if device.type != "cpu":
        raise ConfigError(f"precision int8 is for a CPU, and the device is {device}; use auto, bfloat16 or float32")
    if not has_vnni():
        raise ConfigError(
            "precision int8 needs a processor with AVX512_VNNI, which this one has not; use auto, bfloat16 or float32"
        )
