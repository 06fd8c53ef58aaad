"""Relevance of the results of a ranking: which models give it, what it is computed from, and what is left out by it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rerank.config import CrossEncoderModel, FirstModel, ModelConfig, PERankModel
from rerank.engine.strategies import Steps, describe
from rerank.errors import InvalidRequest
from rerank.manifest import read_manifest
from rerank.rankers.base import RankerInfo
from rerank.relevance import OWN_LOG_ODDS, RelevanceCurve, log_odds
from rerank.types import Prepared, Ranking, ScoreKind, WindowTrace


def relevance_curve(model: ModelConfig, info: RankerInfo, encoder_sha256: str) -> RelevanceCurve | None:
    """The curve of a model: of its settings, or of its checkpoint's manifest; None if it has none.

    A cross-encoder's score, and that of any model that gives a probability, need no curve of their own. A curve of
    another encoder's cosine is none.
    """
    curve = model.relevance
    if curve is None and isinstance(model, FirstModel | PERankModel) and model.path is not None:
        manifest = read_manifest(model.path)
        curve = manifest.relevance if manifest else None
    if curve is None and (info.score_kind is ScoreKind.POINTWISE_PROBABILITY or isinstance(model, CrossEncoderModel)):
        curve = OWN_LOG_ODDS
    return None if curve is not None and curve.encoder_sha256 not in ("", encoder_sha256) else curve


def gives_relevance(steps: Steps, infos: Mapping[str, RankerInfo]) -> bool:
    """True if the model of the last step has a curve, and the steps give what it is computed from."""
    info = infos[steps[-1].model]
    if info.relevance is None or not info.relevance.encoder_sha256:
        return info.relevance is not None and info.score_kind.is_pointwise
    return any(infos[step.model].reads_vectors for step in steps)


def check_min_relevance(
    value: float, steps: Steps, infos: Mapping[str, RankerInfo], defaults: Mapping[str, Steps]
) -> None:
    """Raises: InvalidRequest if the value is no probability, or these steps give no relevance.

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
        problem = f"{describe(steps)} gives no relevance, as no step reads vectors; leave strategy and preranker out"
    else:
        ways = [f"use a model that gives it ({', '.join(others)})"] if others else []
        ways += ["leave it out", f"fit it with `eval-relevance {name} --fit`"]
        problem = f"model {name} gives no relevance; {', or '.join(ways)}"
    raise InvalidRequest("min_relevance", problem, {"model": name})


def with_relevance(
    ranking: Ranking,
    order: Sequence[int],
    info: RankerInfo,
    prepared: Iterable[Prepared],
    windows: Sequence[WindowTrace],
) -> Ranking:
    """The ranking, with the relevance of each result of which there is evidence.

    Args:
        order: all positions, of which the ranking has the first ones.
        info: the ranker of the last step.
        prepared: query and passages of each step, in the order of the positions.
        windows: all windows.
    """
    if info.relevance is None:
        raise ValueError(f"{info.model_id} has no relevance; this is a bug")
    of_cosine = bool(info.relevance.encoder_sha256)
    evidence = cosines(prepared) if of_cosine else own_scores(windows, ranking.trace.model, info.score_kind)
    known = [position for position in order if position in evidence]
    of = dict(zip(known, info.relevance.relevances([evidence[position] for position in known]), strict=True))
    return replace(ranking, ranked=tuple(replace(item, relevance=of.get(item.position)) for item in ranking.ranked))


def at_least(ranking: Ranking, min_relevance: float) -> Ranking:
    """The ranking without the results that have less relevance, or none that is known.

    A ranking in the place of a failure keeps those, because no model may have read them.
    """
    unknown = math.inf if ranking.trace.failure else -math.inf
    known = ((unknown if item.relevance is None else item.relevance, item) for item in ranking.ranked)
    return replace(ranking, ranked=tuple(item for relevance, item in known if relevance >= min_relevance))


def cosines(prepared: Iterable[Prepared]) -> Mapping[int, float]:
    """Position → cosine of query and passage, of the step that has the vectors."""
    for each in prepared:
        query, vectors = each.query.vector, [passage.vector for passage in each.passages]
        found = [vector for vector in vectors if vector is not None]
        if query is not None and found and len(found) == len(vectors):
            return dict(enumerate((np.stack(found) @ query).tolist()))
    return {}


def own_scores(windows: Iterable[WindowTrace], model: str, kind: ScoreKind) -> Mapping[int, float]:
    """Position → the model's own score of the passage; the log-odds of one that is a probability."""
    is_probability = kind is ScoreKind.POINTWISE_PROBABILITY
    return {
        position: log_odds(score) if is_probability else score
        for window in windows
        if window.model == model
        for position, score in zip(window.positions, window.scores, strict=True)
    }
