"""Models as users name them: by a bundled name, or by the folder of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from rerank.checkpoints.manifest import model_in, served_model, stated_ranker
from rerank.config.loading import load_config
from rerank.config.models import ModelConfig
from rerank.config.service import BUNDLED_MODELS, ServiceConfig
from rerank.errors import ConfigError
from rerank.names import did_you_mean
from rerank.util.files import looked_for_model

#: All bundled models by name.
BUNDLED: dict[str, ModelConfig] = {model.name: model for model in BUNDLED_MODELS}
_MODELS, _ = get_args(ModelConfig)
#: Rankers whose models have a checkpoint.
_WITH_CHECKPOINT = {
    get_args(model.model_fields["ranker"].annotation)[0] for model in get_args(_MODELS) if "path" in model.model_fields
}


def named_model(name_or_path: str) -> dict[str, object]:
    """The settings of a model as the command line gives it: NAME or NAME=NAME of a bundled model, NAME=RANKER:PATH, or
    as `served_model` reads it.

    Raises:
        ConfigError: see `served_model`.
    """
    name, _, model = name_or_path.partition("=")
    if (bundled := BUNDLED.get(model or name)) is not None:
        return bundled.model_dump(exclude_unset=True) | {"name": name, "load": "start"}
    ranker, _, path = model.partition(":")
    if path and ranker in _WITH_CHECKPOINT:
        if (stated := stated_ranker(Path(path))) not in (None, ranker):
            raise ConfigError(f"--model {name_or_path}: {path} is a checkpoint of {stated}, not of {ranker}")
        return {"name": name, "ranker": ranker, "path": path}
    return served_model(name_or_path)


def config_of_model(name: str) -> ServiceConfig:
    """The default settings with one model, and the preranker that it needs.

    Args:
        name: a bundled model ("default", "pe-rank", "first", "pe-rank-first" or "identity"), the folder of a checkpoint
            with a manifest, or PROFILE:FOLDER of a published checkpoint.

    Raises:
        ConfigError: it is not one of these.
    """
    if name in BUNDLED:
        models = [BUNDLED[known] for known in (name, BUNDLED[name].preranker) if known]
        return ServiceConfig(models=tuple(model.model_copy(update={"load": "start"}) for model in models))
    folder = Path(name.rpartition(":")[2])
    if not (name and folder.is_dir()):
        meant = did_you_mean(name, BUNDLED)
        raise ConfigError(
            f"model {name!r} is not one of {', '.join(BUNDLED)}, and there is no such folder"
            f"{f';{meant}' if meant else looked_for_model(folder)}"
        )
    return load_config(None, models=[model_in(name, Path(name).name, f"model {name!r}: ")])
