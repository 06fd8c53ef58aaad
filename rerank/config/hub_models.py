"""Downloads the models that a configuration names on the hub, with the prompts and encoders that profiles state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rerank.checkpoints.hub import download, is_hub_name
from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.checkpoints.publisher_prompt import bring_prompt, read_words
from rerank.config.encoder import EncoderConfig
from rerank.config.models import CheckpointModel, LanguageModel, ModelConfig, PERankModel, ProfiledModel
from rerank.config.service import ServiceConfig
from rerank.errors import CheckpointError, ConfigError
from rerank.profiles import Profile, load_profile


def download_models(config: ServiceConfig) -> ServiceConfig:
    """Downloads the models of a configuration; returns it with their folders, and with the encoder that they need.

    Raises:
        ConfigError: a model or its publisher's prompt is not in the cache and cannot be downloaded, or models need
            different encoders.
        CheckpointError: the files of a model are refused.
    """
    models = tuple(map(_downloaded, config.models))
    changed: dict[str, object] = {"models": models}
    if "encoder" not in config.model_fields_set and (needed := _needed_encoder(models)):
        changed["encoder"] = EncoderConfig(name=needed)
    return config.model_copy(update=changed)


def _downloaded(model: ModelConfig) -> ModelConfig:
    """The model with the folder of its download, and with its publisher's prompt."""
    if not isinstance(model, CheckpointModel) or not is_hub_name(name := str(model.path)):
        return model
    try:
        folder = download(name, weights=False)
        changed: dict[str, object] = {"path": folder}
        profile = load_profile(model.profile) if isinstance(model, ProfiledModel) and model.profile else None
        if isinstance(model, LanguageModel) and profile is not None:
            changed |= _own_template(folder, model, profile, name)
        elif profile is not None and profile.publisher_prompt is not None:
            read_words(profile.publisher_prompt, folder, name)  # before the weights are downloaded
        if model.servers is None:
            download(name)
    except (CheckpointError, ConfigError) as error:
        raise type(error)(f"model {model.name}: {error}") from error
    return model.model_copy(update=changed)


def _own_template(folder: Path, model: LanguageModel, profile: Profile, name: str) -> dict[str, object]:
    """The setting `template` with the folder's template, which replaces the profile's; empty if there is none."""
    if profile.publisher_prompt is not None and model.template is None:
        bring_prompt(profile.publisher_prompt, folder, name)
    own = folder / TEMPLATE_FILE
    return {"template": str(own)} if own.is_file() and model.template in (None, profile.template) else {}


def _needed_encoder(models: Iterable[ModelConfig]) -> str:
    """The encoder that the profiles of PE-Rank models state; empty if none does. Raises: ConfigError if they differ."""
    profiles = {model.name: model.profile for model in models if isinstance(model, PERankModel) and model.profile}
    needed = {name: encoder for name, profile in profiles.items() if (encoder := load_profile(profile).encoder)}
    if len(set(needed.values())) > 1:
        stated = ", ".join(f"{name} needs {encoder}" for name, encoder in needed.items())
        raise ConfigError(f"a service has one encoder, and {stated}; serve them by different services")
    return next(iter(needed.values()), "")
