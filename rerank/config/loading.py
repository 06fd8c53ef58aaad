"""Reads the configuration of the service from its YAML file. Unknown keys and invalid values raise an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from rerank.config.models import ModelConfig
from rerank.config.service import BUNDLED_MODELS, ServiceConfig
from rerank.errors import MAX_QUOTED_CHARS, ConfigError
from rerank.types import StrategyKind
from rerank.util.validation import problems_of, suggestion
from rerank.util.yaml_files import YamlFile, read_yaml

#: A cascade has at most this many models, all different.
_MAX_STAGES = 3


def load_config(
    path: Path | None, first_models: Sequence[Mapping[str, object]] = (), **overrides: object
) -> ServiceConfig:
    """Reads the configuration from a YAML file; settings that it leaves out have their default.

    Args:
        path: the YAML file; None uses the defaults only.
        first_models: further models, in the form of the file, which precede the models of the file. Without models in
            the file they precede the default models and replace those with the same names.
        overrides: settings that replace the file's, unless they are None. A mapping replaces only the keys that it has.

    Raises:
        ConfigError: the file cannot be read, has a key twice, an unknown key or an invalid value; the message names its
            line and the path of the setting, such as models[0].path.
    """
    file = read_yaml(path) if path is not None else None
    settings = _settings(file)
    settings |= {key: _merged(settings.get(key), value) for key, value in overrides.items() if value is not None}
    if first_models:
        settings["models"] = [*first_models, *_further_models(settings, first_models)]
    place_of = partial(_place, file, overrides, len(first_models))
    try:
        config = ServiceConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(problems_of(error, settings, ServiceConfig, place_of)) from error
    _check_names(config, place_of)
    return config


def _settings(file: YamlFile | None) -> dict[str, object]:
    """The keys and values of a file, which may be empty."""
    if file is None or file.content is None:
        return {}
    if not isinstance(file.content, dict):
        raise ConfigError(f"{file.path}: expected keys and values, found {type(file.content).__name__}")
    return dict(file.content)


def _place(
    file: YamlFile | None, overrides: Mapping[str, object], first_models: int, location: Sequence[int | str]
) -> str:
    """The source of a setting, for errors: the file with its line, or the command line."""
    match location:
        case ["models", int(number), *rest]:
            from_file = number >= first_models
            location = ["models", number - first_models, *rest]
        case [str(name), *rest]:
            given = overrides.get(name)
            from_file = given is None or (isinstance(given, Mapping) and bool(rest) and rest[0] not in given)
        case _:
            from_file = True
    return file.file_and_line(location) if file and from_file else "command line"


def _check_names(config: ServiceConfig, place_of: Callable[[Sequence[int | str]], str]) -> None:
    """Raises: ConfigError if two models have the same name, or a setting names an unknown model."""
    names = [model.name for model in config.models]
    if not names or len(set(names)) != len(names):
        raise ConfigError(
            f"{place_of(['models'])}: models must be one or more with distinct names, given: "
            f"{', '.join(names) or 'none'}"
        )
    by_name = {model.name: model for model in config.models}
    for number, model in enumerate(config.models):
        if model.preranker and (problem := preranker_problem(model.preranker, model.name, by_name)):
            raise ConfigError(f"{place_of(['models', number, 'preranker'])}: {problem}")
    aliased = config.http.model_aliases.values() if config.http else ()
    if unknown := sorted(set(aliased) - set(names)):
        raise ConfigError(
            f"{place_of(['http', 'model_aliases'])}: http.model_aliases names {', '.join(unknown)}, which is not one "
            f"of the models: {', '.join(names)}{suggestion(unknown[0], names)}"
        )


def preranker_problem(preranker: str, name: str, models: Mapping[str, ModelConfig]) -> str:
    """The reason why a model cannot be the preranker of the model `name`, and what to do; empty if it can.

    A preranker ranks by its default strategy, which may be a cascade of two models.
    """
    stages = {other: _default_stages(other, models) for other in models}
    choices = [other for other, names in stages.items() if name not in names and 0 < len(names) < _MAX_STAGES]
    if preranker in choices:
        return ""
    way_out = f"use {' or '.join(choices)}" if choices else "add another model, or leave preranker out"
    if not preranker:
        return f"a cascade needs a preranker, and {name} has none; {way_out}"
    quoted = preranker[:MAX_QUOTED_CHARS]
    if preranker not in models:
        return f"preranker {quoted!r} of {name}: there is no such model{suggestion(quoted, choices)}; {way_out}"
    return f"preranker {quoted!r} of {name} makes no cascade of at most {_MAX_STAGES} different models; {way_out}"


def _default_stages(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """The models of a model's default strategy, last stage first; empty if a preranker is missing or in a circle."""
    stages = [name]
    while models[stages[-1]].strategy is StrategyKind.CASCADE:
        preranker = models[stages[-1]].preranker
        if preranker in stages or preranker not in models:
            return []
        stages.append(preranker)
    return stages


def _merged(given: object, override: object) -> object:
    if not isinstance(override, Mapping) or not isinstance(given, Mapping | str):
        return override
    return {**({"listen": given} if isinstance(given, str) else given), **override}  # a text for `http` is its address


def _further_models(settings: Mapping[str, object], first_models: Sequence[Mapping[str, object]]) -> Sequence[object]:
    """The models of the file; if it has none, the default models without those that `first_models` replace."""
    replaced = {model["name"] for model in first_models}
    models = settings.get("models", [model for model in BUNDLED_MODELS if model.name not in replaced])
    return models if isinstance(models, list | tuple) else [models]
