"""Loads the transformer of a ranker. The only file that picks device and dtype."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from accelerate import init_empty_weights
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rerank.config import Precision
from rerank.errors import CheckpointError, ConfigError
from rerank.files import sha256_of_files

#: Keys of a saved causal LM that belong to its transformer start like this.
_TRANSFORMER_PREFIX = "model."
_TOKEN_EMBEDDINGS = "embed_tokens.weight"
#: PE-Rank's published checkpoints put this before the name of their architecture.
_EMBED_PREFIX = "embed_"
_ONE_FILE = "model.safetensors"
_ADAPTER_FILE = "adapter_config.json"


def pick_device(name: str = "auto") -> torch.device:
    """The device to compute on; `auto` takes CUDA where there is one.

    Raises:
        ConfigError: CUDA was asked for and this machine or this build of torch has none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"device {name!r} asked for, but torch {torch.__version__} sees no CUDA device; use cpu or auto"
        )
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} is none that torch knows; use auto, cpu or cuda") from error


def weights_dtype(device: torch.device, precision: Precision) -> torch.dtype:
    """float32 on the CPU whatever the precision, see `autocasts`; bfloat16 on CUDA unless float32 is asked for."""
    return torch.float32 if device.type == "cpu" or precision == "float32" else torch.bfloat16


def autocasts(device: torch.device, precision: Precision) -> bool:
    """Whether float32 weights compute in bfloat16: on a CPU, where weights of bfloat16 would lose more and gain little.

    The sums between the layers stay float32.
    """
    return device.type == "cpu" and precision == "bfloat16"


def read_config(checkpoint: Path) -> PretrainedConfig:
    """The checkpoint's config.json. PE-Rank's "embed_mistral" is read as the Mistral that it is; no code is loaded.

    Raises:
        CheckpointError: the folder holds no configuration that transformers can read.
    """
    if not (checkpoint / "config.json").is_file():
        raise CheckpointError(f"{checkpoint} holds no config.json; give the folder of a checkpoint")
    try:
        settings = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        kind = str(settings.get("model_type"))
        if kind.startswith(_EMBED_PREFIX):
            plain = kind.removeprefix(_EMBED_PREFIX)
            return AutoConfig.for_model(plain).from_dict(settings | {"model_type": plain})
        return AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{checkpoint}/config.json: {error}") from error


def read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint by name, on the CPU.

    Raises:
        CheckpointError: see `weight_files`, or one of them is no safetensors file.
    """
    weights: dict[str, torch.Tensor] = {}
    for path in weight_files(checkpoint):
        try:
            weights |= load_file(path)
        except SafetensorError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    return weights


def weight_files(checkpoint: Path) -> list[Path]:
    """model.safetensors, or the parts that its index names.

    Raises:
        CheckpointError: there is neither, the index cannot be read, or a part is missing.
    """
    one, index = checkpoint / _ONE_FILE, checkpoint / f"{_ONE_FILE}.index.json"
    if one.is_file():
        return [one]
    if not index.is_file():
        raise CheckpointError(f"{checkpoint} holds no {_ONE_FILE}; give the folder of a checkpoint")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} names no files in a weight_map") from error
    if missing := [name for name in names if not (checkpoint / name).is_file()]:
        raise CheckpointError(f"{checkpoint} holds no {', '.join(missing)}, which {index.name} names")
    return [checkpoint / name for name in names]


def build_transformer(
    config: PretrainedConfig,
    weights: Mapping[str, torch.Tensor],
    token_embeddings: torch.Tensor,
    device: torch.device,
    precision: Precision = "auto",
) -> PreTrainedModel:
    """The transformer without its vocabulary head, ready for inference. Nothing is drawn that would be overwritten.

    Args:
        config: the architecture, a causal one.
        weights: the checkpoint's tensors; those named `model.*` are used, all of them and no fewer.
        token_embeddings: (vocabulary, hidden) input embeddings, which the checkpoint does not store.

    Raises:
        CheckpointError: the tensors do not fit the architecture, or the token embeddings their width.
    """
    if token_embeddings.shape[1] != config.hidden_size:
        raise CheckpointError(
            f"token embeddings of width {token_embeddings.shape[1]} do not fit hidden size {config.hidden_size}"
        )
    dtype = weights_dtype(device, precision)
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModel.from_config(config, dtype=dtype)
    own = {  # copies, because how a file lies in memory would change the last bits of the sums
        name.removeprefix(_TRANSFORMER_PREFIX): tensor.to(dtype, copy=True)
        for name, tensor in weights.items()
        if name.startswith(_TRANSFORMER_PREFIX)
    }
    try:
        model.load_state_dict(
            own | {_TOKEN_EMBEDDINGS: token_embeddings.to(dtype, copy=True)}, strict=True, assign=True
        )
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint does not fit its config.json: {error}") from error
    return model.eval().requires_grad_(False).to(device)


@dataclass(frozen=True)
class CausalLM:
    """A causal language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    #: SHA-256 of the weight files.
    revision: str
    #: The most positions that it reads.
    context_tokens: int
    #: Whether it computes in bfloat16 with float32 weights.
    autocast: bool


def load_causal_lm(checkpoint: Path, device: torch.device, precision: Precision = "auto") -> CausalLM:
    """A full checkpoint, or a LoRA adapter merged into its base.

    Raises:
        CheckpointError: the folder holds no causal LM, or the adapter's base is not to be had.
    """
    base, is_adapter = base_of(checkpoint), (checkpoint / _ADAPTER_FILE).is_file()
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=weights_dtype(device, precision))
        if is_adapter:
            model = PeftModel.from_pretrained(model, str(checkpoint)).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(checkpoint if _has_tokenizer(checkpoint) else base)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{checkpoint} is no causal language model that can be loaded: {error}") from error
    positions = getattr(model.config, "max_position_embeddings", None)
    context_tokens = min(limit for limit in (positions, tokenizer.model_max_length) if limit)
    revision = sha256_of_files(sorted(checkpoint.glob("*.safetensors")))
    model = model.eval().requires_grad_(False).to(device)
    return CausalLM(model, tokenizer, revision, context_tokens, autocasts(device, precision))


class IdentifierHead(nn.Module):
    """The rows of a vocabulary head that belong to the identifiers, in float32: bfloat16 logits tie.

    Takes the head's place in the model, so that a logit scale or soft cap behind it still applies.
    """

    def __init__(self, head: nn.Module, token_ids: Sequence[int]) -> None:
        super().__init__()
        rows = torch.tensor(list(token_ids))
        weight, bias = cast(torch.Tensor, head.weight), cast(torch.Tensor | None, getattr(head, "bias", None))
        self.weight = nn.Parameter(weight[rows].detach().float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias[rows].detach().float(), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(…, hidden) → (…, n) float32 logits."""
        with torch.autocast(hidden.device.type, enabled=False):
            return nn.functional.linear(hidden.float(), self.weight, self.bias)


def base_of(checkpoint: Path) -> str:
    """The base that a LoRA adapter names; the checkpoint itself when it is none.

    Raises:
        CheckpointError: the adapter names no base.
    """
    adapter = checkpoint / _ADAPTER_FILE
    if not adapter.is_file():
        return str(checkpoint)
    try:
        return str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{adapter} names no base_model_name_or_path") from error


def _has_tokenizer(checkpoint: Path) -> bool:
    return (checkpoint / "tokenizer_config.json").is_file()
