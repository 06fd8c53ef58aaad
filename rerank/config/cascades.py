"""Cascades: which models may order the candidates before another one."""

from __future__ import annotations

from collections.abc import Mapping

from rerank.config.models import ModelConfig
from rerank.errors import MAX_QUOTED_CHARS
from rerank.types import StrategyKind
from rerank.util.validation import suggestion

#: The most models in a cascade; none may appear twice.
_MAX_STAGES = 3


def preranker_problem(preranker: str, name: str, models: Mapping[str, ModelConfig]) -> str:
    """Says why a model cannot be the preranker of the model `name`, with the way out; empty if it can.

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
    """The models of a model's default strategy, last stage first; none if they go round in a circle, or lack one."""
    stages = [name]
    while models[stages[-1]].strategy is StrategyKind.CASCADE:
        preranker = models[stages[-1]].preranker
        if preranker in stages or preranker not in models:
            return []
        stages.append(preranker)
    return stages
