"""Parser of the systems to evaluate: --ranker RANKER[:PATH] and --system NAME=RANKER[/STRATEGY][:PATH].

A system can be a cascade: --system NAME=RANKER[:PATH]>RANKER[:PATH]@SIZE[>RANKER[:PATH]@SIZE], where each model but the
first reads so many of the best passages of the one before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from rerank import profiles
from rerank.config import ModelConfig
from rerank.config.cascades import MAX_STAGES
from rerank.errors import ConfigError
from rerank.types import StrategyKind

_MODELS, _ = get_args(ModelConfig)
#: Ranker → names of the settings of its models in the service's configuration.
_SETTINGS_OF = {
    get_args(model.model_fields["ranker"].annotation)[0]: frozenset(model.model_fields) for model in get_args(_MODELS)
}
#: Rankers that a service runs.
SERVED = ("default", *_SETTINGS_OF)
#: A fusion that reads the whole list, without sparse vectors and without feedback.
_COSINE = {"sparse_weight": 0.0, "cosine_depth": 0, "feedback_passages": 0}
#: Baselines that are settings of a fusion: the encoder's cosine alone, and with 0.3 times the first stage's score.
FUSIONS: dict[str, dict[str, object]] = {
    "cosine": {**_COSINE, "first_stage_weight": 0.0},
    "z-score": {**_COSINE, "first_stage_weight": 0.3},
}
#: Sorts by the judgements, in the process of the evaluation.
ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A system to evaluate.

    Attributes:
        ranker: one of SERVED, FUSIONS or ORACLE, or the name of a profile; `default` is the default model of a service,
            whatever it consists of.
        path: folder of a checkpoint; with --target, the name of a model of that service.
        strategy: None for the strategy that all systems share.
        window_size: the passages that it reads of those before it in a cascade; 0 outside of one.
        preranker: the model before it in a cascade.
    """

    name: str
    ranker: str
    path: str = ""
    strategy: StrategyKind | None = None
    window_size: int = 0
    preranker: SystemSpec | None = None

    @property
    def is_served(self) -> bool:
        return self.ranker != ORACLE

    @property
    def model_settings(self) -> Collection[str]:
        """Names of the settings of its model in the service's configuration; none if the service chooses the ranker."""
        is_profile = self.ranker in profiles.names()
        return _SETTINGS_OF.get(profiles.load_profile(self.ranker).ranker if is_profile else self.ranker, ())

    @property
    def cascade_settings(self) -> dict[str, object]:
        """The settings of its model that a cascade needs."""
        if self.preranker is None:
            return {}
        return {"strategy": StrategyKind.CASCADE, "window_size": self.window_size, "preranker": self.preranker.name}

    @property
    def stages(self) -> list[SystemSpec]:
        """The models of a cascade, the last one first; itself alone outside of one."""
        return [self, *(self.preranker.stages if self.preranker else [])]


def parse_systems(rankers: Sequence[str], systems: Sequence[str]) -> list[SystemSpec]:
    """The systems of all --ranker and --system flags; PE-Rank when there are none.

    Raises:
        ConfigError: an unknown ranker or strategy, a strategy for a baseline, a name that occurs twice or is no file
            name, a cross-encoder without a model, or a cascade that is not of two or three models.
    """
    unnamed = [_unnamed(ranker) for ranker in rankers or (() if systems else ("pe-rank",))]
    specs = unnamed + [_parse(system) for system in systems]
    for spec in specs:
        _check(spec)
        for stage in spec.stages if spec.preranker else ():
            _check_stage(stage)
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ConfigError(f"systems {', '.join(names)}: two have the same name; rename one with --system NAME=RANKER")
    return specs


def _unnamed(text: str) -> SystemSpec:
    """The system of --ranker RANKER[:PATH], which has the ranker's name."""
    ranker, _, path = text.partition(":")
    return SystemSpec(ranker, ranker, path)


def _parse(text: str) -> SystemSpec:
    name, equals, system = text.partition("=")
    if ">" in system:
        return _parse_cascade(text, name, system.split(">"))
    ranker, _, path = system.partition(":")
    ranker, slash, strategy = ranker.partition("/")
    if not equals:
        raise ConfigError(f"--system {text!r}: expected NAME=RANKER[/STRATEGY][:PATH]")
    try:
        return SystemSpec(name, ranker, path, StrategyKind(strategy) if slash else None)
    except ValueError as error:
        strategies = ", ".join(StrategyKind)
        raise ConfigError(f"--system {text!r}: strategy {strategy!r} is none of {strategies}") from error


def _parse_cascade(text: str, name: str, parts: Sequence[str]) -> SystemSpec:
    spec: SystemSpec | None = None
    for number, part in enumerate(parts):
        model, _, size = part.strip().rpartition("@") if number else (part, "", "0")
        if not model or not size.isdecimal() or (number and int(size) < 2) or len(parts) > MAX_STAGES:
            raise ConfigError(
                f"--system {text!r}: a cascade is two or three models, each after the first with the number of "
                "passages that it reads, at least 2, as in 'NAME=pe-rank>cross-encoder:PATH@100>first@20'"
            )
        ranker, _, path = model.strip().partition(":")
        stage = name if number == len(parts) - 1 else f"{name}.{number + 1}"
        spec = SystemSpec(stage, ranker, path, window_size=int(size), preranker=spec)
    if spec is None:
        raise AssertionError("a cascade without models was parsed; this is a bug")
    return spec


def _check(spec: SystemSpec) -> None:
    known = (*SERVED, *FUSIONS, ORACLE, *profiles.names())
    if spec.ranker not in known:
        raise ConfigError(f"ranker {spec.ranker!r} is none of {', '.join(known)}")
    if spec.ranker in profiles.names() and not spec.path:
        raise ConfigError(f"profile {spec.ranker} needs its checkpoint: --system NAME={spec.ranker}:PATH")
    if spec.strategy and spec.ranker in (*FUSIONS, ORACLE):
        raise ConfigError(f"{spec.ranker} scores passages one by one and takes no strategy; leave out /{spec.strategy}")
    if not re.fullmatch(r"\w[\w.-]*", spec.name):
        raise ConfigError(f"system name {spec.name!r} would name a folder; use letters, digits, '.', '-' and '_'")
    if spec.ranker == "default" and spec.path:
        raise ConfigError(f"default is the service's own model; name the ranker of {spec.path} instead")
    if spec.ranker == "cross-encoder" and not spec.path:
        raise ConfigError("a cross-encoder needs its model: --ranker cross-encoder:PATH")


def _check_stage(spec: SystemSpec) -> None:
    """Raises: ConfigError if the ranker of a model of a cascade is not one that a service runs."""
    _check(spec)
    if spec.ranker == "default":
        raise ConfigError("default is a cascade already; name rankers as the models of a cascade")
    if not spec.is_served:
        raise ConfigError(f"{spec.ranker} runs in the evaluation, and the models of a cascade in the service")
