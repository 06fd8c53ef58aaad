"""Loads the transformer of a ranker. The only file that picks device and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from rerank.errors import CheckpointError, ConfigError

#: Keys of a saved causal LM that belong to its transformer start like this.
_TRANSFORMER_PREFIX = "model."
_WORD_VECTORS = "embed_tokens.weight"


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


def read_config(checkpoint: Path) -> PretrainedConfig:
    """The checkpoint's config.json.

    Raises:
        CheckpointError: the folder holds no configuration that transformers can read.
    """
    if not (checkpoint / "config.json").is_file():
        raise CheckpointError(f"{checkpoint} holds no config.json; give the folder of a checkpoint")
    try:
        return AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint}/config.json: {error}") from error


def read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of model.safetensors by name, on the CPU.

    Raises:
        CheckpointError: there is no such file.
    """
    path = checkpoint / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{checkpoint} holds no model.safetensors; give the folder of a checkpoint")
    return load_file(path)


def build_transformer(
    config: PretrainedConfig, weights: Mapping[str, torch.Tensor], word_vectors: torch.Tensor, device: torch.device
) -> PreTrainedModel:
    """The transformer without its vocabulary head, in float32, ready for inference.

    Args:
        config: the architecture, a causal one.
        weights: the checkpoint's tensors; those named `model.*` are used, all of them and no fewer.
        word_vectors: (vocabulary, hidden) input embeddings, which the checkpoint does not store.

    Raises:
        CheckpointError: the tensors do not fit the architecture, or the word vectors their width.
    """
    if word_vectors.shape[1] != config.hidden_size:
        raise CheckpointError(
            f"word vectors of width {word_vectors.shape[1]} do not fit a model of hidden size {config.hidden_size}"
        )
    model: PreTrainedModel = AutoModel.from_config(config, dtype=torch.float32)
    own = {
        name.removeprefix(_TRANSFORMER_PREFIX): tensor
        for name, tensor in weights.items()
        if name.startswith(_TRANSFORMER_PREFIX)
    }
    try:
        model.load_state_dict(own | {_WORD_VECTORS: word_vectors}, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint does not fit its config.json: {error}") from error
    return model.eval().requires_grad_(False).to(device)
