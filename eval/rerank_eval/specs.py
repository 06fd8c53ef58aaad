"""Parser of the systems to evaluate: --ranker RANKER and --system NAME=RANKER[/STRATEGY][:PATH]."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from rerank import profiles
from rerank.config import ModelConfig
from rerank.errors import ConfigError
from rerank.types import StrategyKind

_MODELS, _ = get_args(ModelConfig)
#: Ranker → names of the settings of its models in the service's configuration.
_SETTINGS_OF = {
    get_args(model.model_fields["ranker"].annotation)[0]: frozenset(model.model_fields) for model in get_args(_MODELS)
}
#: Rankers that a service runs.
SERVED = ("default", *_SETTINGS_OF)
#: Rankers that run in the process of the evaluation.
BASELINES = ("cosine", "z-score", "cross-encoder", "oracle")


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A system to evaluate.

    Attributes:
        ranker: one of SERVED or BASELINES, or the name of a profile; `default` is the default model of a service,
            whatever it consists of.
        path: folder of a checkpoint; with --target, the name of a model of that service.
        strategy: None for the strategy that all systems share.
    """

    name: str
    ranker: str
    path: str = ""
    strategy: StrategyKind | None = None

    @property
    def is_served(self) -> bool:
        return self.ranker not in BASELINES

    @property
    def model_settings(self) -> Collection[str]:
        """Names of the settings of its model in the service's configuration; none if the service chooses the ranker."""
        is_profile = self.ranker in profiles.names()
        return _SETTINGS_OF.get(profiles.load_profile(self.ranker).ranker if is_profile else self.ranker, ())


def parse_systems(rankers: Sequence[str], systems: Sequence[str], model: str) -> list[SystemSpec]:
    """The systems of all --ranker and --system flags; PE-Rank when there are none.

    Args:
        model: value of --model, the checkpoint of the only --ranker.

    Raises:
        ConfigError: an unknown ranker or strategy, a strategy for a baseline, a name that occurs twice or is no file
            name, a cross-encoder without a model, or --model with several rankers.
    """
    if model and len(rankers) > 1:
        raise ConfigError(
            f"--model gives the checkpoint of one --ranker, and there are {len(rankers)}; use --system NAME=RANKER:PATH"
        )
    unnamed = [SystemSpec(ranker, ranker, model) for ranker in rankers or (() if systems else ("pe-rank",))]
    specs = unnamed + [_parse(system) for system in systems]
    for spec in specs:
        _check(spec)
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ConfigError(f"systems {', '.join(names)}: two have the same name; rename one with --system NAME=RANKER")
    return specs


def _parse(text: str) -> SystemSpec:
    name, equals, system = text.partition("=")
    ranker, _, path = system.partition(":")
    ranker, slash, strategy = ranker.partition("/")
    if not equals:
        raise ConfigError(f"--system {text!r}: expected NAME=RANKER[/STRATEGY][:PATH]")
    try:
        return SystemSpec(name, ranker, path, StrategyKind(strategy) if slash else None)
    except ValueError as error:
        strategies = ", ".join(StrategyKind)
        raise ConfigError(f"--system {text!r}: strategy {strategy!r} is none of {strategies}") from error


def _check(spec: SystemSpec) -> None:
    known = (*SERVED, *BASELINES, *profiles.names())
    if spec.ranker not in known:
        raise ConfigError(f"ranker {spec.ranker!r} is none of {', '.join(known)}")
    if spec.ranker in profiles.names() and not spec.path:
        raise ConfigError(f"profile {spec.ranker} needs its checkpoint: --system NAME={spec.ranker}:PATH")
    if spec.strategy and not spec.is_served:
        raise ConfigError(f"{spec.ranker} scores passages one by one and takes no strategy; leave out /{spec.strategy}")
    if not re.fullmatch(r"\w[\w.-]*", spec.name):
        raise ConfigError(f"system name {spec.name!r} would name a folder; use letters, digits, '.', '-' and '_'")
    if spec.ranker == "default" and spec.path:
        raise ConfigError(f"default is the service's own model; name the ranker of {spec.path} instead")
    if spec.ranker == "cross-encoder" and not spec.path:
        raise ConfigError("a cross-encoder needs its model: --system NAME=cross-encoder:PATH_OR_NAME")
