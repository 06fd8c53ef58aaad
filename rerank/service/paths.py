"""Checks the files that the settings of a model name. It imports none of the libraries that will load them."""

from __future__ import annotations

import os
from pathlib import Path

from rerank.checkpoints.bundled import SMOLLM2
from rerank.checkpoints.cross_encoder_files import check_cross_encoder
from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.checkpoints.settings_files import check_settings, read_settings
from rerank.checkpoints.weight_files import check_weights
from rerank.config import (
    CheckpointModel,
    CrossEncoderModel,
    ModelConfig,
    PERankModel,
    ServableModel,
)
from rerank.errors import CheckpointError, ConfigError
from rerank.prompting.templates import TEXT_FIELDS, VECTOR_FIELDS, load_template
from rerank.util.files import check_file, is_missing_folder, looked_for

_CONFIGURATION, _ADAPTER = "config.json", "adapter_config.json"
_WEIGHTS = ("*.safetensors", "*.bin")


def check_model_files(model: ModelConfig) -> None:
    """Checks the paths that the settings of a model name, its templates, and the key of its servers.

    Raises:
        ConfigError: a folder or file is missing or is something else, a template cannot be used, or the variable of a
            key is not set.
    """
    try:
        if model.servers is not None:
            model.servers.api_key()
        if isinstance(model, CrossEncoderModel):
            _check_folder(model.path)
        if not isinstance(model, CheckpointModel):
            return
        if not isinstance(model, ServableModel) or model.served_by is None or model.tokenizer is None:
            if model.path is not None and str(model.path) != SMOLLM2:
                _check_folder(model.path)
        else:
            _check_name(model.tokenizer)
        needed = VECTOR_FIELDS if isinstance(model, PERankModel) else TEXT_FIELDS
        if model.template is not None:
            load_template(model.template, needed)
        if model.path is not None and (model.path / TEMPLATE_FILE).is_file():
            load_template(str(model.path / TEMPLATE_FILE), needed)
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"model {model.name}: {error}") from error
    except OSError as error:
        raise ConfigError(f"model {model.name}: {error.filename} cannot be read: {error.strerror}") from error


def problem_of_checkpoint(model: ModelConfig) -> str:
    """Says why the files of a model cannot be loaded, as far as that is seen before; empty if they can."""
    path = model.checkpoint
    if path is None or str(path) == SMOLLM2 or model.servers is not None:
        return ""
    try:
        if isinstance(model, CrossEncoderModel):
            check_cross_encoder(path)
        check_settings(path)
        if path.suffix != ".gguf":
            _check_checkpoint(path)
            check_weights(path)
    except CheckpointError as error:
        return str(error)
    return ""


def problem_of_encoder(folder: Path) -> str:
    """Says why the files of an encoder cannot be loaded, see `problem_of_checkpoint`."""
    try:
        check_settings(folder)
        check_weights(folder)
    except CheckpointError as error:
        return str(error)
    return ""


def _check_checkpoint(path: Path) -> None:
    """Raises: CheckpointError unless the folder has a configuration and weights, and its base exists."""
    if not any((path / name).is_file() for name in (_CONFIGURATION, _ADAPTER)):
        raise CheckpointError(f"{path} has no {_CONFIGURATION} or {_ADAPTER}; give the folder of a checkpoint")
    if not any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        raise CheckpointError(f"{path} has no weights ({' or '.join(_WEIGHTS)}); copy the checkpoint again")
    if (path / _ADAPTER).is_file():
        _check_base(path)


def _check_folder(path: Path) -> None:
    """Raises: ConfigError unless the path is a folder or a GGUF file."""
    if path.suffix == ".gguf":
        check_file(path)
    elif not os.path.isdir(path):
        raise ConfigError(f"there is no folder {path}{looked_for(path)}; give the folder of a checkpoint")


def _check_base(adapter: Path) -> None:
    """Raises: CheckpointError if the base of an adapter is the path of a missing folder."""
    base = str(read_settings(adapter / _ADAPTER).get("base_model_name_or_path", ""))
    if is_missing_folder(base):
        raise CheckpointError(
            f"{adapter} is an adapter of {base}, and there is no such folder{looked_for(Path(base))}; write the place "
            f"of the base model into its {_ADAPTER}"
        )


def _check_name(tokenizer: str) -> None:
    """Raises: ConfigError if it is the path of a missing folder; other names are those of models on the hub."""
    if is_missing_folder(tokenizer):
        where = looked_for(Path(tokenizer))
        raise ConfigError(f"there is no folder {tokenizer}{where}; give the folder or the name of a tokenizer")
