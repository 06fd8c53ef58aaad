"""Models as users name them: by a bundled name, by the folder of a checkpoint, or by its name on the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from rerank import profiles
from rerank.checkpoints.cross_encoder_files import is_cross_encoder
from rerank.checkpoints.hub import download, is_hub_name, repository_of
from rerank.checkpoints.late_interaction_files import is_late_interaction
from rerank.checkpoints.manifest import MANIFEST_FILE, RESULT_FOLDER, stated_ranker
from rerank.checkpoints.published_families import other_architecture_hint
from rerank.checkpoints.settings_files import ADAPTER_FILE, architecture_in, read_settings
from rerank.config.loading import load_config
from rerank.config.models import ModelConfig
from rerank.config.service import BUNDLED_MODELS, ServiceConfig
from rerank.errors import CheckpointError, ConfigError
from rerank.names import did_you_mean
from rerank.util.files import missing_model_hint

#: All bundled models by name.
BUNDLED: dict[str, ModelConfig] = {model.name: model for model in BUNDLED_MODELS}
_MODELS, *_ = get_args(ModelConfig)
#: Rankers whose models have a checkpoint.
_WITH_CHECKPOINT = sorted(
    get_args(model.model_fields["ranker"].annotation)[0] for model in get_args(_MODELS) if "path" in model.model_fields
)
#: Rankers whose checkpoint is a causal LM of any family.
_CAUSAL_LM_RANKERS = ("first", "generation")
_CAUSAL = "ForCausalLM"
#: Every saved model has one of these files.
_CONFIGS = ("config.json", ADAPTER_FILE)


def named_model(given: str) -> dict[str, object]:
    """The settings of a model that the command line gives as NAME of a bundled model, as NAME=MODEL, or as MODEL.

    MODEL is the name of a bundled model, PROFILE:PATH of a published checkpoint, RANKER:PATH, or the PATH of a
    checkpoint with a manifest or of a cross-encoder. PATH is a folder, or ORGANISATION/MODEL on the hub with or without
    @REVISION; if a profile lists this model, it is used. MODEL without NAME= is named `default` unless it is bundled.

    The files of the checkpoint are checked when the model is loaded, so that other models can be served although one is
    damaged. If no profile lists a model on the hub, its settings are downloaded here; `rerank.config.hub_models`
    downloads the weights.

    Raises:
        ConfigError: the text has none of these forms, there is no checkpoint in the folder, or neither the text nor a
            manifest says how the model ranks.
    """
    name, _, model = given.partition("=")
    if not model and name in BUNDLED:
        model = name
    elif (not model and (":" in given or is_hub_name(given))) or Path(given).is_dir():
        name, model = "default", given
    if not name or not model:
        meant = (
            did_you_mean(given, BUNDLED) or f" write NAME=PATH, as in default={given.strip('=') or 'runs/first/final'}"
        )
        raise ConfigError(f"--model {given!r} is none of {', '.join(BUNDLED)};{meant}")
    return _model(model, name, f"--model {given}: ", f"{name}=")


def config_of_model(given: str) -> ServiceConfig:
    """The default settings with one model, and the preranker that it needs.

    Args:
        given: MODEL as in `named_model`, with or without NAME= before it.

    Raises:
        ConfigError: there is no such model.
    """
    name, _, model = given.partition("=")
    if not model or not re.fullmatch(r"[\w.-]+", name) or Path(given).exists():  # a path may contain "="
        name, model = "", given
    if model in BUNDLED:
        models = [BUNDLED[known] for known in (model, BUNDLED[model].preranker) if known]
        models[0] = models[0].model_copy(update={"name": name or model})
        return ServiceConfig(models=tuple(used.model_copy(update={"load": "start"}) for used in models))
    form = f"{name}=" if name else ""
    if not name and ":" not in model and not (model and Path(model).exists()) and not is_hub_name(model):
        meant = did_you_mean(model, BUNDLED)
        raise ConfigError(
            f"model {model!r} is not one of {', '.join(BUNDLED)}, and there is no such folder"
            f"{f';{meant}' if meant else missing_model_hint(Path(model))}"
        )
    settings = _model(model, name, f"model {given!r}: ", form)
    folder = Path(str(settings["path"]))
    if not is_hub_name(str(folder)):
        _check_exists(folder, f"model {given!r}: ")
    return load_config(None, models=[settings | {"name": name or repository_of(folder.name)}])


def _model(model: str, name: str, given: str, form: str) -> dict[str, object]:
    """The settings of the model with this name.

    Args:
        given: the beginning of errors, such as "--model NAME=MODEL: ".
        form: the text before MODEL in the argument, such as "NAME=".
    """
    if (bundled := BUNDLED.get(model)) is not None:
        return bundled.model_dump(exclude_unset=True) | {"name": name, "load": "start"}
    kind, _, path = model.partition(":")
    if path and kind in profiles.names():
        return {"name": name, "path": path, "profile": kind, "ranker": profiles.load_profile(kind).ranker}
    if path and kind in _WITH_CHECKPOINT:
        if (stated := stated_ranker(Path(path))) not in (None, kind):
            raise ConfigError(f"{given}{path} is a checkpoint of {stated}, not of {kind}")
        return {"name": name, "path": path, "ranker": kind}
    if is_hub_name(model):
        return _on_hub(model, name, given, form)
    folder = Path(model)
    if path and not folder.exists():
        meant = did_you_mean(kind, (*profiles.names(), *_WITH_CHECKPOINT))
        raise ConfigError(f"{given}{kind!r} is neither a profile nor a ranker;{meant} {_way_out(Path(path), form)}")
    if (published := _profile_of(folder)) is not None:
        of_profile = profiles.load_profile(published).ranker
        return {"name": name, "path": model, "profile": published, "ranker": of_profile}
    if (ranker := _ranker_of_files(folder)) is not None:
        return {"name": name, "path": model, "ranker": ranker}
    if _may_be_cross_encoder(folder):
        return {"name": name, "path": model, "ranker": "cross-encoder"}
    if not (folder / MANIFEST_FILE).exists():
        _check_is_checkpoint(folder, given)
        problem = f"{given}{folder} has no {MANIFEST_FILE}, which says how a model ranks"
        raise ConfigError(f"{problem}; {_way_out(folder, form)}")
    return {"name": name, "path": model, "ranker": stated_ranker(folder) or "first"}


def _on_hub(model: str, name: str, given: str, form: str) -> dict[str, object]:
    """The settings of a model on the hub, see `_model`: from its profile, or from its files, which are downloaded."""
    if (kind := profiles.of_checkpoint(repository_of(model))) is not None:
        return _model(f"{kind}:{model}", name, given, form)
    try:
        folder = str(download(model, weights=False))
    except ConfigError as error:
        raise ConfigError(f"{given}{error}") from error
    try:
        return _model(folder, name, given, form) | {"path": model}
    except ConfigError as error:
        raise ConfigError(str(error).replace(folder, model)) from error


def _profile_of(folder: Path) -> str | None:
    """The profile of a published model by its folder's name; None if the model's files say how it scores."""
    if any((folder / file).is_file() for file in (MANIFEST_FILE, "modules.json")):
        return None
    try:
        model_type = str(read_settings(folder / "config.json").get("model_type", ""))
    except CheckpointError:
        return None
    of_hub = [part.rpartition("--")[2] for part in folder.absolute().parts if part.startswith("models--")]
    found = {profiles.of_folder(name, model_type) for name in (folder.absolute().name, *of_hub)} - {None}
    return found.pop() if len(found) == 1 else None


def _ranker_of_files(folder: Path) -> str | None:
    """The ranker that the files of a model name; None if they name none, or cannot be read."""
    try:
        return "late-interaction" if is_late_interaction(folder) else None
    except CheckpointError:
        return None


def _may_be_cross_encoder(folder: Path) -> bool:
    """True for a cross-encoder, and for a folder without a manifest whose files cannot be read: the loader says why."""
    try:
        return is_cross_encoder(folder)
    except CheckpointError:
        return not (folder / MANIFEST_FILE).exists()


def _check_exists(path: Path, given: str) -> None:
    """Raises: ConfigError if there is no folder."""
    if path.is_file():
        raise ConfigError(f"{given}{path} is a file; give the folder of a saved model")
    if not path.exists():
        raise ConfigError(f"{given}there is no folder {path}{missing_model_hint(path)}")


def _check_is_checkpoint(path: Path, given: str) -> None:
    """Raises: ConfigError if the folder does not exist, or has no model."""
    _check_exists(path, given)
    if path.is_dir() and not any((path / file).is_file() for file in _CONFIGS):
        result = path / RESULT_FOLDER
        example = result if result.is_dir() else f"runs/mine/{RESULT_FOLDER}"
        raise ConfigError(
            f"{given}{path} holds no checkpoint: it has no {', '.join((MANIFEST_FILE, *_CONFIGS))}; give the folder "
            f"of a saved model, such as {example}"
        )


def _way_out(folder: Path, form: str) -> str:
    """The end of an error: the profiles and rankers that fit a folder's config.json, as the user may write them."""
    try:
        config = read_settings(folder / "config.json")
    except CheckpointError:
        config = {}
    architecture, model_type = architecture_in(config), str(config.get("model_type", ""))
    if reason := other_architecture_hint(config):
        return f"it is {reason.replace('FOLDER', f'{folder}')}"
    published = profiles.of_model_type(model_type) if model_type else profiles.names()
    if model_type and not published and not architecture.endswith(_CAUSAL):
        return f"it is a {architecture or model_type}, which gives vectors and no order: give it as --encoder {folder}"
    chat = [name for name in profiles.of_model_type("") if name not in published]
    kinds = f"{f'of a {model_type} ' if model_type else ''}({', '.join(published)})" if published else ""
    kinds += " or " * bool(kinds and chat) + f"of any chat model ({', '.join(chat)})" * bool(chat)
    rankers = ", ".join(_CAUSAL_LM_RANKERS if model_type else _WITH_CHECKPOINT)
    return f"write {form}PROFILE:{folder} with a profile {kinds}, or {form}RANKER:{folder} with a ranker ({rankers})"
