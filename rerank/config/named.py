"""The configuration that a single model needs, by the model's name or the folder of its checkpoint."""

from __future__ import annotations

from pathlib import Path

from rerank.config.loading import load_config
from rerank.config.service import ServiceConfig
from rerank.errors import ConfigError
from rerank.manifest import served_model
from rerank.names import current_model_name, did_you_mean


def config_of_model(name: str) -> ServiceConfig:
    """The default settings with one model, and the preranker that it needs.

    Args:
        name: a model of the default settings ("default", "pe-rank" or "identity"), the folder of a checkpoint with a
            manifest, or PROFILE:FOLDER of a published checkpoint.

    Raises:
        ConfigError: it is none of these.
        CheckpointError: the manifest of the folder cannot be read, or its files were changed.
    """
    defaults = {model.name: model for model in ServiceConfig().models}
    if (name := current_model_name(name, defaults)) in defaults:
        preranker = defaults[name].preranker
        return ServiceConfig(models=(defaults[name], *([defaults[preranker]] if preranker else [])))
    if not name or not Path(name.rpartition(":")[2]).is_dir():
        raise ConfigError(
            f"model {name!r} is none of {', '.join(defaults)}, and no folder of a checkpoint;"
            f"{did_you_mean(name, defaults)} give one of these names, the folder of a checkpoint, or PROFILE:FOLDER"
        )
    return load_config(None, models=[served_model(f"{Path(name).name}={name}")])
