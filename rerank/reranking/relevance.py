"""Relevance of results: which models give it, how it follows from their signals, and what `min_relevance` drops."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import yaml
from pydantic import TypeAdapter

from rerank.checkpoints import bundled
from rerank.checkpoints.manifest import read_manifest
from rerank.checkpoints.relevance import OWN_LOG_ODDS, RelevanceCurves, log_odds, relevance
from rerank.config import CrossEncoderModel, FirstModel, ModelConfig, PERankModel
from rerank.engine.strategies import Steps, describe
from rerank.errors import InvalidRequest
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Ranking, ScoreKind, WindowTrace


@cache
def bundled_curves() -> RelevanceCurves:
    """Reads the curves of the signals that the bundled encoders give."""
    return TypeAdapter(RelevanceCurves).validate_python(yaml.safe_load(bundled.RELEVANCE.read_text("utf-8")))


def relevance_curves(model: ModelConfig, info: RankerInfo) -> RelevanceCurves:
    """Finds a model's curves in its settings or its checkpoint; otherwise its own score or the bundled ones count.

    A cross-encoder's score, and that of any model that gives a probability, need no fitted curve.
    """
    if model.relevance:
        return model.relevance
    if isinstance(model, FirstModel | PERankModel) and model.path is not None:
        manifest = read_manifest(model.path)
        if manifest and manifest.relevance:
            return manifest.relevance
    is_log_odds = info.score_kind is ScoreKind.POINTWISE_PROBABILITY or isinstance(model, CrossEncoderModel)
    return OWN_LOG_ODDS if is_log_odds else bundled_curves()


def usable(curves: RelevanceCurves, encoders: Mapping[str, str]) -> RelevanceCurves:
    """Leaves out curves that were fitted for the signals of another encoder.

    Args:
        encoders: signal → SHA-256 of the encoder behind it.
    """
    return tuple(curve for curve in curves if curve.encoders.items() <= encoders.items())


def signal_encoders(infos: Iterable[RankerInfo]) -> dict[str, str]:
    """Maps each signal to the SHA-256 of the encoder behind it, which all rankers of a service share."""
    return {signal: sha256 for info in infos for signal, sha256 in info.signals.items()}


def gives_relevance(steps: Steps, infos: Mapping[str, RankerInfo]) -> bool:
    """Returns True if the last step's model has a curve for signals that the steps give."""
    info = infos[steps[-1].model]
    given = {"score"} if info.score_kind.is_pointwise else set[str]()
    given.update(*(infos[step.model].signals for step in steps))
    return any(curve.slopes.keys() <= given for curve in info.relevance)


def check_min_relevance(
    value: float, steps: Steps, infos: Mapping[str, RankerInfo], defaults: Mapping[str, Steps]
) -> None:
    """Raises: InvalidRequest if the value is not a probability, or these steps give no relevance.

    Args:
        infos: of all models by name.
        defaults: the default steps of all models by name.
    """
    if not 0 <= value <= 1:  # also true for nan
        raise InvalidRequest(
            "min_relevance",
            f"{value} is not between 0 and 1; use a probability, such as 0.5",
            {"value": str(value), "limit": "0 to 1"},
        )
    if gives_relevance(steps, infos):
        return
    name = steps[-1].model
    others = [other for other, of_other in defaults.items() if other != name and gives_relevance(of_other, infos)]
    if gives_relevance(defaults[name], infos):
        problem = (
            f"{describe(steps)} gives no relevance, as no step computes its signal; leave strategy and preranker out"
        )
    else:
        ways = [f"use a model that gives it ({', '.join(others)})"] if others else []
        ways += ["leave it out", f"fit it with `eval-relevance {name} --requests FILE --qrels FILE --fit`"]
        problem = f"model {name} gives no relevance; {', or '.join(ways)}"
    raise InvalidRequest("min_relevance", problem, {"model": name})


def with_relevance(ranking: Ranking, curves: RelevanceCurves, passages: Sequence[Passage]) -> Ranking:
    """Adds the relevance of each result that has a signal; 0 for a blank text.

    Args:
        curves: of the model of the last step.
        passages: those of the request, in the order of the positions.
    """
    known = signals_by_text(ranking.trace.windows, ranking.trace.model, passages)
    if not known or not curves:
        return ranking
    ranked = []
    for item in ranking.ranked:
        text = passages[item.position].text
        value = relevance(curves, known.get(text, {})) if text.strip() else 0.0
        ranked.append(replace(item, relevance=value))
    return replace(ranking, ranked=tuple(ranked))


def at_least(ranking: Ranking, min_relevance: float, top_n: int = 0) -> Ranking:
    """Drops the results whose relevance is lower, or not known, and keeps the first `top_n` (0: all) of the others.

    A ranking in the place of a failure keeps those of unknown relevance, which no model may have read, and says so. If
    nothing is left, a warning names the highest relevance.
    """
    unknown = {item.position for item in ranking.ranked if item.relevance is None}
    kept = unknown if ranking.trace.failure else set[int]()
    ranked = tuple(
        item
        for item in ranking.ranked
        if item.position in kept or (item.relevance is not None and item.relevance >= min_relevance)
    )[: top_n or None]
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


def signals_by_text(
    windows: Sequence[WindowTrace], model: str, passages: Sequence[Passage]
) -> Mapping[str, Mapping[str, float]]:
    """Collects text → signal → value from the windows of every step; `score` is that of `model`.

    Equal texts share what is known of one of them.

    Args:
        windows: all windows of a ranking.
        model: that of the last step.
        passages: those of the request, in the order of the positions.
    """
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for window in windows:
        signals = dict(window.signals)
        if window.model == model and window.score_kind.is_pointwise:
            is_probability = window.score_kind is ScoreKind.POINTWISE_PROBABILITY
            signals["score"] = tuple(map(log_odds, window.scores)) if is_probability else window.scores
        for signal, values in signals.items():
            for position, value in zip(window.positions, values, strict=True):
                if not math.isnan(value):
                    found[passages[position].text][signal] = value
    return found
