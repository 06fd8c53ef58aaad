"""Checks the files that the settings of a model name. It imports none of the libraries that will load them."""

from __future__ import annotations

import os
from pathlib import Path

from rerank.checkpoints.bundled import SMOLLM2
from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.config import LanguageModel, ModelConfig, PERankModel
from rerank.errors import CheckpointError, ConfigError
from rerank.prompting.templates import TEXT_FIELDS, VECTOR_FIELDS, load_template
from rerank.util.files import is_missing_folder, looked_for_model


def check_model_files(model: ModelConfig) -> None:
    """Checks the paths and the template that the settings of a model name, and the key of its servers.

    What is inside of a checkpoint's folder is checked when the model is loaded, and then stops this model only.

    Raises:
        ConfigError: a folder or file is missing or is something else, a template cannot be used, or the variable of a
            key is not set.
    """
    try:
        if model.servers is not None:
            model.servers.api_key()
        if model.checkpoint is not None and str(model.checkpoint) != SMOLLM2:
            _check_folder(model.checkpoint, may_be_a_name=model.servers is not None)
        if not isinstance(model, LanguageModel):
            return
        if model.template is not None and model.template != str(Path(model.path or "") / TEMPLATE_FILE):
            load_template(model.template, VECTOR_FIELDS if isinstance(model, PERankModel) else TEXT_FIELDS)
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"model {model.name}: {error}") from error
    except OSError as error:
        raise ConfigError(f"model {model.name}: {error.filename} cannot be read: {error.strerror}") from error


def _check_folder(path: Path, may_be_a_name: bool) -> None:
    """Raises: ConfigError unless the path is a folder, or a name that a model hub can know, if it may."""
    if not os.path.isdir(path) and (not may_be_a_name or is_missing_folder(str(path))):
        raise ConfigError(f"there is no folder {path}{looked_for_model(path)}")
