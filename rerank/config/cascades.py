"""Cascades: which models may order the candidates before another one."""

from __future__ import annotations

from collections.abc import Mapping

from rerank.config.models import ModelConfig
from rerank.types import StrategyKind

#: A cascade has at most so many models, each once.
MAX_STAGES = 3


def possible_prerankers(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """The models that may be the preranker of a model, with their own default strategies."""
    stages = {other: _default_stages(other, models) for other in models}
    return [other for other, names in stages.items() if name not in names and 0 < len(names) < MAX_STAGES]


def _default_stages(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """The models of a model's default strategy, last stage first; none if they go round in a circle, or lack one."""
    stages = [name]
    while models[stages[-1]].strategy is StrategyKind.CASCADE:
        preranker = models[stages[-1]].preranker
        if preranker in stages or preranker not in models:
            return []
        stages.append(preranker)
    return stages
