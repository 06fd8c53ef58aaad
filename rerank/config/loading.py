"""Reads the configuration of the service from its YAML file. Unknown keys and invalid values raise an error."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from rerank.config.models import ModelConfig
from rerank.config.service import BUNDLED_MODELS, ServiceConfig
from rerank.errors import ConfigError
from rerank.types import StrategyKind

#: Quotes values in error messages; the whole of one may be large, as YAML can repeat its parts.
_GIVEN = reprlib.Repr()
_GIVEN.maxlevel, _GIVEN.maxstring, _GIVEN.maxother = 2, 200, 200


def load_config(
    path: Path | None, first_models: Sequence[Mapping[str, object]] = (), **overrides: object
) -> ServiceConfig:
    """Reads the configuration from a YAML file; settings that it leaves out have their default.

    Args:
        path: the YAML file; None uses the defaults only.
        first_models: further models, in the form of the file, which precede the models of the file. Without models in
            the file they precede the default models and replace those with the same names.
        overrides: settings that replace those of the file, unless they are None; of a mapping, only the keys it has.

    Raises:
        ConfigError: the file cannot be read, or contains an unknown key or an invalid value.
    """
    settings = _read_yaml(path) if path is not None else {}
    settings |= {key: _merged(settings.get(key), value) for key, value in overrides.items() if value is not None}
    if first_models:
        settings["models"] = [*first_models, *_further_models(settings, first_models)]
    source = path or "command line"
    try:
        config = ServiceConfig.model_validate(settings)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']} (given {_GIVEN.repr(e['input'])})" for e in error.errors()
        )
        raise ConfigError(f"{source}: {problems}") from error
    names = [model.name for model in config.models]
    if not names or len(set(names)) != len(names):
        raise ConfigError(
            f"{source}: models must be one or more with distinct names, given: {', '.join(names) or 'none'}"
        )
    for model in config.models:
        _check_preranker(model, config.models, source)
    if config.http is not None and (unknown := set(config.http.model_aliases.values()) - set(names)):
        raise ConfigError(
            f"{source}: http.model_aliases names {', '.join(sorted(unknown))}, which is none of the models: "
            f"{', '.join(names)}"
        )
    return config


def _merged(given: object, override: object) -> object:
    if not isinstance(override, Mapping) or not isinstance(given, Mapping | str):
        return override
    return {**({"listen": given} if isinstance(given, str) else given), **override}  # of http, the text is the address


def _check_preranker(model: ModelConfig, models: Sequence[ModelConfig], source: object) -> None:
    """Raises: ConfigError if the preranker is no model, the model itself, or a cascade by default."""
    choices = [other.name for other in models if other is not model and other.strategy is not StrategyKind.CASCADE]
    if model.preranker and model.preranker not in choices:
        raise ConfigError(
            f"{source}: preranker {model.preranker!r} of model {model.name} is none of {', '.join(choices) or 'none'}, "
            "the other models whose strategy is no cascade"
        )


def _further_models(settings: Mapping[str, object], first_models: Sequence[Mapping[str, object]]) -> Sequence[object]:
    """The models of the file, or without any the default models with other names than `first_models`."""
    replaced = {model["name"] for model in first_models}
    models = settings.get("models", [model for model in BUNDLED_MODELS if model.name not in replaced])
    return models if isinstance(models, list | tuple) else [models]


def _read_yaml(path: Path) -> dict[str, object]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(settings, dict | None):
        raise ConfigError(f"{path}: expected keys and values, found {type(settings).__name__}")
    return settings or {}
