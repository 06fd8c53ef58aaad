"""Relevance of results: the models that have it, its computation, and the results that `min_relevance` drops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rerank.config.relevance import RelevanceCurve
from rerank.engine.strategies import Stages, describe
from rerank.errors import InvalidRequest
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Ranking, RankOptions, ScoreKind, WindowTrace


def probability(log_odds: float) -> float:
    """The probability of log odds, 1 / (1 + exp(-log_odds)), without overflow for large numbers."""
    return 1 / (1 + math.exp(-min(700.0, max(-700.0, log_odds))))


def gives_relevance(stages: Stages, infos: Mapping[str, RankerInfo]) -> bool:
    """True if the last stage has probabilities as scores, or a stage reads cosines of an encoder with a curve."""
    return infos[stages[-1].model].relevance == "score" or any(
        infos[stage.model].relevance == "cosine" for stage in stages
    )


def check_min_relevance(
    value: float, stages: Stages, infos: Mapping[str, RankerInfo], defaults: Mapping[str, Stages]
) -> None:
    """Raises: InvalidRequest if the value is not a probability, or these stages give no relevance.

    Args:
        infos: name → description of all models.
        defaults: name → default stages of all models.
    """
    check_is_probability(value)
    if gives_relevance(stages, infos):
        return
    name = stages[-1].model
    others = [other for other, of_other in defaults.items() if other != name and gives_relevance(of_other, infos)]
    if gives_relevance(defaults[name], infos):
        problem = f"{describe(stages)} gives no relevance, as no stage reads a cosine; leave strategy and preranker out"
    else:
        ways = [f"use a model that gives it ({', '.join(others)})"] if others else []
        ways += ["leave it out"]
        if infos[name].kind in ("fusion", "pe-rank"):
            ways += ["set encoder.relevance, as `python -m scripts.reproduce.relevance` fits it"]
        problem = f"model {name} gives no relevance; {', or '.join(ways)}"
    raise InvalidRequest("min_relevance", problem, {"model": name})


def check_is_probability(min_relevance: float) -> None:
    """Raises: InvalidRequest if the value is not between 0 and 1."""
    if not 0 <= min_relevance <= 1:  # also true for nan
        raise InvalidRequest(
            "min_relevance",
            f"{min_relevance} is not between 0 and 1; use a probability, such as 0.5",
            {"value": str(min_relevance), "limit": "0 to 1"},
        )


def with_relevance(
    ranking: Ranking, info: RankerInfo, curve: RelevanceCurve | None, passages: Sequence[Passage]
) -> Ranking:
    """Adds the relevance of each result with a score or a cosine; a blank text has 0, and equal texts have equal ones.

    Args:
        info: description of the model of the last stage.
        curve: relevance curve of the service's encoder; None if it has none.
        passages: passages of the request, by position.
    """
    known = dict[str, float]()
    for window in ranking.trace.windows:
        if info.relevance != "score":
            values = _by_cosine(window, curve) if window.cosines and curve is not None else []
        else:
            values = _by_score(window) if window.model == ranking.trace.model else []
        for position, value in zip(window.positions, values, strict=bool(values)):
            if not math.isnan(value):
                known[passages[position].text] = value
    if not known:
        return ranking
    ranked = []
    for item in ranking.ranked:
        text = passages[item.position].text
        ranked.append(replace(item, relevance=known.get(text) if text.strip() else 0.0))
    return replace(ranking, ranked=tuple(ranked))


def _by_score(window: WindowTrace) -> list[float]:
    is_probability = window.score_kind is ScoreKind.POINTWISE_PROBABILITY
    return [score if is_probability else probability(score) for score in window.scores]


def _by_cosine(window: WindowTrace, curve: RelevanceCurve) -> list[float]:
    """The relevance of each passage by its cosine; NaN for a passage without one."""
    log_odds = [curve.intercept + curve.slope * cosine for cosine in window.cosines]
    return [value if math.isnan(value) else probability(value) for value in log_odds]


def at_least(ranking: Ranking, options: RankOptions) -> Ranking:
    """Drops results whose relevance is below `min_relevance` or unknown, and keeps the first `top_n` of the others.

    Without `min_relevance`, the ranking is unchanged. A ranking after a failure keeps results of unknown relevance,
    which perhaps no model has read, and its reason says so. If no result is left, a warning has the highest relevance.
    """
    min_relevance = options.min_relevance
    if min_relevance is None:
        return ranking
    unknown = {item.position for item in ranking.ranked if item.relevance is None}
    kept = unknown if ranking.trace.failure else set[int]()
    ranked = tuple(
        item
        for item in ranking.ranked
        if item.position in kept or (item.relevance is not None and item.relevance >= min_relevance)
    )[: options.top_n or None]
    trace = ranking.trace
    if kept:
        note = f"min_relevance {min_relevance:g} is not applied to {len(kept)} results, whose relevance is unknown"
        trace = replace(trace, reason=f"{trace.reason}; {note}")
    elif ranking.ranked and not ranked:
        best = max((item.relevance for item in ranking.ranked if item.relevance is not None), default=None)
        of_best = "none has a relevance" if best is None else f"the best has a relevance of {best:.3g}"
        warning = f"{len(ranking.ranked)} results left out by min_relevance {min_relevance:g}; {of_best}"
        trace = replace(trace, model_warning="; ".join(filter(None, (trace.model_warning, warning))))
    return replace(ranking, ranked=ranked, trace=trace)
