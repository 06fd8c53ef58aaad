"""Reads the configuration and the weights of a checkpoint, and builds a transformer of them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from rerank.checkpoints.settings_files import ADAPTER_FILE, read_settings
from rerank.config import Precision
from rerank.errors import CheckpointError
from rerank.models.checkpoint_errors import loading
from rerank.models.precision import weights_dtype, width_of

#: Prefix of the tensors of a saved causal LM that belong to its transformer.
_TRANSFORMER_PREFIX = "model."
_TOKEN_EMBEDDINGS = "embed_tokens.weight"
#: Prefix of the architecture's name in PE-Rank's published checkpoints.
_EMBED_PREFIX = "embed_"
_WEIGHTS_FILES = ("model*.safetensors", "pytorch_model*.bin")


def read_config(checkpoint: Path) -> PretrainedConfig:
    """Reads config.json without loading code of the folder. PE-Rank's "embed_mistral" is read as "mistral".

    Raises:
        CheckpointError: the folder holds no configuration that transformers can read.
    """
    if (checkpoint / ADAPTER_FILE).is_file():
        raise CheckpointError(
            f"{checkpoint} is an adapter; merge it into its base by merge_and_unload of peft, and give the result"
        )
    if not (checkpoint / "config.json").is_file():
        raise CheckpointError(f"{checkpoint} holds no config.json; give the folder of a checkpoint")
    with loading("the architecture of", path := checkpoint / "config.json"):
        settings = read_settings(path)
        model_type = str(settings.get("model_type"))
        if model_type.startswith(_EMBED_PREFIX):
            architecture = model_type.removeprefix(_EMBED_PREFIX)
            return AutoConfig.for_model(architecture).from_dict(settings | {"model_type": architecture})
        return AutoConfig.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)


def read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint by name, on the CPU.

    Raises:
        CheckpointError: see `weight_files`, or a file is in neither the safetensors format nor torch's.
    """
    weights: dict[str, torch.Tensor] = {}
    for path in weight_files(checkpoint):
        weights |= _read_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path)
    return weights


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def read_torch_file(path: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file that torch.save wrote; no code in it is run.

    Raises:
        CheckpointError: the file holds something else.
    """
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a dictionary of tensors: {error}") from error


def weight_files(checkpoint: Path) -> list[Path]:
    """Returns the files of the weights: in the safetensors format, or else torch's.

    Raises:
        CheckpointError: there are none, or fewer than their names say: model-00001-of-00002.safetensors.
    """
    for pattern in _WEIGHTS_FILES:
        if found := sorted(checkpoint.glob(pattern)):
            stated = re.search(r"-of-(\d+)\.", found[0].name)
            if stated and len(found) < int(stated[1]):
                names = ", ".join(path.name for path in found)
                raise CheckpointError(f"{checkpoint} holds {names} alone; download the checkpoint again")
            return found
    raise CheckpointError(f"{checkpoint} holds no {' or '.join(_WEIGHTS_FILES)}; give the folder of a checkpoint")


def build_transformer(
    config: PretrainedConfig,
    weights: Mapping[str, torch.Tensor],
    token_embeddings: torch.Tensor,
    device: torch.device,
    precision: Precision = "auto",
) -> PreTrainedModel:
    """Returns the transformer without its vocabulary head, ready for inference. No random weights are drawn first.

    Args:
        config: a causal architecture.
        weights: the checkpoint's tensors; exactly those named `model.*` are loaded.
        token_embeddings: (vocabulary, hidden) input embeddings, which the checkpoint does not store.

    Raises:
        CheckpointError: the tensors do not fit the architecture, or the token embeddings do not fit its hidden size.
    """
    if token_embeddings.shape[1] != config.hidden_size:
        raise CheckpointError(
            f"token embeddings of width {token_embeddings.shape[1]} do not fit hidden size {config.hidden_size}; "
            "use the encoder that the checkpoint was made for"
        )
    dtype = weights_dtype(device, precision, width_of(config))
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModel.from_config(config, dtype=dtype)
    tensors = {  # copies, because the memory alignment of a mapped file would change the last bits of sums
        name.removeprefix(_TRANSFORMER_PREFIX): tensor.to(device, dtype, copy=True)
        for name, tensor in weights.items()
        if name.startswith(_TRANSFORMER_PREFIX)
    }
    try:
        model.load_state_dict(
            tensors | {_TOKEN_EMBEDDINGS: token_embeddings.to(device, dtype, copy=True)}, strict=True, assign=True
        )
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint does not fit its config.json: {error}") from error
    return model.eval().requires_grad_(False).to(device)
