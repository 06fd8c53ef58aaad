"""Chooses the number format of a model by its device, its width and what the processor can do."""

from __future__ import annotations

import copy
import logging
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from rerank.models.linear_layers import check_float8, use_onednn
from rerank.types import Precision

log = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)

#: The smallest hidden size for which `auto` is bfloat16, on a CPU that has it. Passes over 1,450 tokens gain at every
#: width (docs/evidence/performance.md, "Precision"). Narrow models, such as the bundled PE-Rank (384), have short
#: passes, which gain nothing.
_MIN_BFLOAT16_WIDTH = 512
#: The largest hidden size of models that keep float32 weights and a float32 residual stream on a GPU and multiply in
#: bfloat16, as on a CPU. On an H100 the bundled FIRST's orders then have a Kendall's tau of .988 with float32's,
#: .982 without; a window takes 4.6 ms, 3.8 without and 17 in float32 (`scripts/prove_on_gpu.sh` at commit 6becd4c3).
#: Wider models were not measured.
_MAX_FLOAT32_STREAM_WIDTH = 768
#: The smallest hidden size of a model whose order float8 is trusted to keep. The bundled FIRST (576) keeps a Kendall's
#: tau of .89 with float32, where .97 was asked for; models of 4,096 were not measured.
_MIN_FLOAT8_WIDTH = 2048


def pick_precision(model: PreTrainedModel, precision: Precision) -> Precision:
    """Chooses the precision of a loaded model's computation. `auto` is bfloat16 on CUDA.

    On a CPU `auto` is bfloat16 if the processor multiplies it and the model is wide enough to gain, otherwise float32.

    Raises:
        ConfigError: the device cannot compute in float8.
    """
    if precision == "float8":
        check_float8(model.device)
        if hidden_size_of(model.config) < _MIN_FLOAT8_WIDTH:
            log.warning(
                "precision float8 changes the order of narrow models: of one of hidden size 576 to a Kendall's tau of "
                ".89 with float32, and this has %d; bfloat16 keeps .98",
                hidden_size_of(model.config),
            )
    if precision != "auto":
        return precision
    if model.device.type != "cpu":
        return "bfloat16"
    return "bfloat16" if has_bfloat16() and hidden_size_of(model.config) >= _MIN_BFLOAT16_WIDTH else "float32"


def compute_in(model: PreTrainedModel, precision: Precision) -> None:
    """Changes the precision in which the linear layers of a model compute, if it has float32 weights and is on a CPU.

    The model can then be neither trained nor saved. In bfloat16 its other layers compute under autocast, see
    `uses_autocast`. Other models stay as they are.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return
    if precision == "float32":
        use_onednn(model, torch.float32)
    elif has_bfloat16():
        use_onednn(model, torch.bfloat16)


def pick_encoder_dtype(device: torch.device, dtype: Precision) -> Precision:
    """Chooses the number format of an encoder: `auto` is bfloat16 on a CPU that multiplies it, otherwise float32.

    float8 becomes bfloat16. Unlike narrow rankers, narrow encoders gain by bfloat16: their passes have about a thousand
    tokens.
    """
    if dtype == "float8":
        return "bfloat16"
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.type == "cpu" and has_bfloat16() else "float32"


def copy_sharing_weights(model: M) -> M:
    """Copies the modules of a model. The copy shares the weights, also weights that `compute_in` has reordered."""
    forwards = [vars(module).get("forward") for module in model.modules()]
    shared = [*model.parameters(), *(forward for forward in forwards if isinstance(forward, partial))]
    return copy.deepcopy(model, {id(part): part for part in shared})


def copy_computing_in(model: M, device: torch.device, dtype: Precision) -> M:
    """Copies a model, which shares its weights. On a CPU the copy's linear layers compute in `dtype`, see `compute_in`.

    Args:
        model: a transformer, or a module that contains one.
    """
    model = copy_sharing_weights(model)
    if device.type == "cpu":
        compute_in(next(module for module in model.modules() if isinstance(module, PreTrainedModel)), dtype)
    return model


def hidden_size_of(config: PretrainedConfig) -> int:
    """Returns the hidden size of a model's text part; 0 if its settings state none."""
    return getattr(config.get_text_config(), "hidden_size", 0)


def weights_dtype(device: torch.device, precision: Precision, width: int) -> torch.dtype:
    """Returns the number format in which weights are loaded: float32 on the CPU, and on CUDA mostly bfloat16.

    On CUDA it is float32 at the precision float32, and for narrow models unless the precision is float8.

    Args:
        width: hidden size of the model; 0: not known.
    """
    keeps_float32 = precision == "float32" or (precision != "float8" and 0 < width <= _MAX_FLOAT32_STREAM_WIDTH)
    return torch.float32 if device.type == "cpu" or keeps_float32 else torch.bfloat16


def uses_autocast(model: PreTrainedModel, precision: Precision) -> bool:
    """Returns True if a loaded model multiplies float32 weights in bfloat16, so that its residual stream is float32."""
    return precision == "bfloat16" and model.dtype == torch.float32


def has_bfloat16() -> bool:
    """Returns True if the processor multiplies bfloat16: by AVX512_BF16, which comes with AMX, too."""
    return torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()
