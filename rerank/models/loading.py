"""Loads causal LMs, and chooses the device that they run on."""

from __future__ import annotations

import os
import re
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rerank.checkpoints.adapters import check_vocabulary, merged
from rerank.checkpoints.bundled import SMOLLM2
from rerank.checkpoints.load_errors import check_complete, loading
from rerank.checkpoints.published_families import other_architecture_hint
from rerank.checkpoints.settings_files import ADAPTER_FILE, read_settings
from rerank.config import Precision
from rerank.errors import CheckpointError, ConfigError
from rerank.models.compiled_layers import set_up_gpu
from rerank.models.linear_layers import use_float8
from rerank.models.memory import check_fits, keep_in_memory
from rerank.models.precision import hidden_size_of, pick_precision, weights_dtype
from rerank.models.smollm2 import locate_causal_lm
from rerank.models.tokenizer import load_tokenizer
from rerank.util.files import is_missing_folder, start_hashing
from rerank.util.header_values import check_header_value

#: Time to wait for the hub's answer.
_TIMEOUT_S = 5.0
#: Every model has one of these files: the first if it is a transformer, the second if it is an adapter.
_CONFIGS = ("config.json", "adapter_config.json")
#: Class of transformers → the task type of adapters for its models.
_ADAPTER_TASKS: dict[Any, str] = {
    AutoModelForCausalLM: "CAUSAL_LM",
    AutoModelForSeq2SeqLM: "SEQ_2_SEQ_LM",
    AutoModelForSequenceClassification: "SEQ_CLS",
}


def pick_device(name: str = "auto") -> torch.device:
    """Returns the device to compute on; `auto` is CUDA if available, otherwise the CPU.

    Raises:
        ConfigError: the name means neither a CPU nor a CUDA device, or there is no such CUDA device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device {name!r} runs no models here; use auto, cpu, cuda or cuda:N")
    if name != "cpu" and (found := torch.cuda.device_count()) <= int(name.partition(":")[2] or 0):
        raise ConfigError(
            f"device {name!r} is configured, but torch {torch.__version__} finds {found or 'no'} CUDA devices; use cpu "
            "or auto"
        )
    return torch.device(name)


def readable_positions(model: nn.Module, stated: int) -> int:
    """Returns the largest number of tokens that a model can read, given the number that its files state.

    Raises:
        CheckpointError: `stated` is not a number, or not positive.
    """
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding):  # RoBERTa's positions begin after the position of padding
            unused = 0 if table.padding_idx is None else table.padding_idx + 1
            stated = min(stated, table.num_embeddings - unused)
    if not isinstance(stated, int) or stated < 1:
        raise CheckpointError(f"the model reads {stated} tokens; correct its max_seq_length")
    return stated


@dataclass(frozen=True)
class CausalLM:
    """A causal language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    hashing: Future[str]
    #: The maximum length of prompt and answer together, in tokens.
    context_tokens: int
    #: The number format to compute in, never `auto`; see `compute_in`.
    precision: Precision

    @property
    def revision(self) -> str:
        """SHA-256 of the weight files. It waits until all files are read, so that callers read it last."""
        return self.hashing.result()


def load_causal_lm(
    checkpoint: Path,
    device: torch.device,
    precision: Precision = "auto",
    auto_class: Any = AutoModelForCausalLM,
    may_have: str = r"(?!)",
) -> CausalLM:
    """Loads a full checkpoint, or a LoRA adapter merged into its base model.

    Args:
        auto_class: class of transformers that loads the model; another one for a model with another head, or without.
        may_have: weights of a head that the caller loads, see `check_complete`.

    Raises:
        CheckpointError: there is no such folder, it holds no causal LM, or the adapter's base model cannot be loaded.
        ConfigError: the adapter's base model is neither a folder nor on the hub.
    """
    set_up_gpu(device)
    with loading("causal language model" if auto_class is AutoModelForCausalLM else "language model", checkpoint):
        return _load_causal_lm(checkpoint, device, precision, auto_class, may_have)


def _load_causal_lm(
    checkpoint: Path, device: torch.device, precision: Precision, auto_class: Any, may_have: str
) -> CausalLM:
    is_adapter = (checkpoint / ADAPTER_FILE).is_file()
    if (base := base_model_of(checkpoint)) != SMOLLM2:
        if is_missing_folder(base) or not (is_adapter or Path(base).is_dir()):  # an adapter may name a model on the hub
            raise CheckpointError(f"there is no folder {base}; give the folder of a checkpoint")
        check_findable(base, f"base of the adapter {checkpoint}", f"set its path in {checkpoint / ADAPTER_FILE}")
    base = locate_causal_lm(base)
    if auto_class is AutoModelForCausalLM and (
        other := other_architecture_hint(read_settings(Path(base) / "config.json"))
    ):
        raise CheckpointError(f"{checkpoint} is {other.replace('FOLDER', f'{checkpoint}')}")
    dtype = weights_dtype(device, precision, hidden_size_of(AutoConfig.from_pretrained(base, trust_remote_code=False)))
    if Path(base).is_dir():
        check_fits(Path(base), device, dtype)
    weights = sorted(checkpoint.glob("*.safetensors")) or sorted(checkpoint.glob("*.bin"))
    hashing = start_hashing(weights)
    model = load_weights(base, dtype, None if device.type == "cpu" else device, auto_class, may_have)
    tokenizer = load_tokenizer(checkpoint if has_tokenizer(checkpoint) else base)
    if is_adapter:
        check_vocabulary(tokenizer, model, checkpoint)
        model = merged(model, checkpoint, _ADAPTER_TASKS.get(auto_class, "FEATURE_EXTRACTION"))
    context_tokens = context_tokens_of(model, tokenizer, checkpoint)
    model = model.eval().requires_grad_(False).to(device)
    picked = pick_precision(model, precision)
    if picked == "float8":
        use_float8(model)
    return CausalLM(model, tokenizer, hashing, context_tokens, picked)


def load_weights(
    base: str,
    dtype: torch.dtype,
    device: torch.device | None = None,
    auto_class: Any = AutoModelForCausalLM,
    may_have: str = r"(?!)",
) -> PreTrainedModel:
    """Loads a causal LM from a folder or from the hub.

    Args:
        device: where the weights are loaded to directly; None: they are loaded to the CPU.
        auto_class, may_have: see `load_causal_lm`.

    Raises:
        CheckpointError: a weight is missing, unknown to the model, or has another shape.
    """
    model, loading_info = auto_class.from_pretrained(
        base, dtype=dtype, device_map=device, output_loading_info=True, trust_remote_code=False
    )
    check_complete(base, loading_info, may_have)
    keep_in_memory(model)
    return cast(PreTrainedModel, model)


def context_tokens_of(model: Any, tokenizer: PreTrainedTokenizerBase, checkpoint: Path) -> int:
    """Returns the largest number of tokens of prompt and answer together.

    Raises:
        CheckpointError: the number is not positive.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    context_tokens = min(limit for limit in (positions, tokenizer.model_max_length) if limit)
    if context_tokens < 1:
        raise CheckpointError(f"{checkpoint} reads {context_tokens} tokens; correct model_max_length of its tokenizer")
    return int(context_tokens)


def load_tokenizer_of(checkpoint: Path | str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a checkpoint, a LoRA adapter or a model on the hub, without the weights.

    Raises:
        CheckpointError: the checkpoint has no tokenizer that can be loaded.
        ConfigError: the checkpoint is neither a folder nor on the hub.
    """
    folder = Path(checkpoint)
    with loading("tokenizer", folder):
        if has_tokenizer(folder):
            return load_tokenizer(folder)
        if (source := base_model_of(folder)) != SMOLLM2:
            check_findable(source, "tokenizer", "give the folder of a checkpoint")
        return load_tokenizer(locate_causal_lm(source, weights=False))


def base_model_of(checkpoint: Path) -> str:
    """Returns the folder or name of a LoRA adapter's base model; for any other checkpoint, its own folder.

    Raises:
        CheckpointError: the adapter's configuration names no base model.
    """
    adapter = checkpoint / ADAPTER_FILE
    if not adapter.is_file():
        return str(checkpoint)
    if not isinstance(base := read_settings(adapter).get("base_model_name_or_path"), str):
        raise CheckpointError(f"{adapter} names no base_model_name_or_path; add the base model's name")
    return base


def has_tokenizer(checkpoint: Path) -> bool:
    """Returns True if the folder holds a tokenizer; an adapter's folder may leave it to its base."""
    return (checkpoint / "tokenizer_config.json").is_file()


def check_findable(name: str, what: str, instead: str) -> None:
    """Checks that `name` is a folder, a model in the local cache of the hub, or one that the hub has.

    Args:
        name: a folder, or the name of a model on the hub.
        what: the model's part, which the error message names, such as "--base".
        instead: the end of the error message, such as "give the folder of a causal language model".

    Raises:
        ConfigError: `name` is none of these, HF_TOKEN cannot be sent, or the hub does not answer.
    """
    if Path(name).is_dir():
        return
    if is_missing_folder(name):
        raise ConfigError(f"there is no folder {name}; {instead}")
    check_header_value("the environment variable HF_TOKEN", os.environ.get("HF_TOKEN", "").strip())
    try:
        if not any(isinstance(try_to_load_from_cache(name, file), str) for file in _CONFIGS):
            HfApi().model_info(name, timeout=_TIMEOUT_S)
    except Exception as error:  # the HTTP library raises others
        raise ConfigError(
            f"{what}: {name} is neither a folder nor in the local cache of the Hugging Face hub, and the hub does not "
            f"have it or cannot be asked ({' '.join(str(error).split())[:300]}); {instead}"
        ) from error
