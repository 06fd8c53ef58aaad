"""Computes the scores of a fusion from the signals of a list's passages. Serving and training share it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from rerank.config import FusionModel
from rerank.retrieval.hybrid import z_scores
from rerank.retrieval.query_update import rocchio
from rerank.types import Matrix, Vector

Floats: TypeAlias = npt.NDArray[np.float64]
#: Passages of the list whose scores smooth that of a passage.
_NEIGHBOURS = 5
#: Share of the leading passages in the query's moved vector.
FEEDBACK_WEIGHT = 0.5
#: Correlation of sparse score and cosine from which the sparse score and the feedback have their whole weights.
FULL_AGREEMENT = 0.3


@dataclass(frozen=True, slots=True)
class CheapSignals:
    """The signals of n passages of a list that need no vector.

    Attributes:
        first_stage: (n,) scores of the first stage, equal ones if the list has none.
        sparse: (n,) scores of the learned sparse vectors; None if there is no sparse encoder.
    """

    first_stage: Floats
    sparse: Floats | None

    def select(self, places: npt.NDArray[np.intp]) -> CheapSignals:
        """The signals of the passages at these places, in this order."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[places] for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Signals:
    """All signals of n passages of a list.

    Attributes:
        cheap: of the same passages.
        vectors: (n, D) unit vectors of the passages.
        query: (D,) unit vector.
    """

    cheap: CheapSignals
    vectors: Matrix
    query: Vector

    def select(self, places: npt.NDArray[np.intp]) -> Signals:
        """The signals of the passages at these places, in this order."""
        return Signals(self.cheap.select(places), self.vectors[places], self.query)

    @property
    def cosines(self) -> Floats:
        """(n,) of the query with each passage."""
        return np.asarray(self.vectors @ self.query, dtype=np.float64)


def cheap_scores(
    settings: FusionModel, first_stage_weight: float, signals: CheapSignals, agreement: float = 1.0
) -> Floats:
    """Returns the (n,) weighted sum of the z-scores of the signals that need no vector."""
    scores = first_stage_weight * z_scores(signals.first_stage)
    if signals.sparse is not None:
        scores += agreement * settings.sparse_weight * z_scores(signals.sparse)
    return scores


def fused_scores(settings: FusionModel, first_stage_weight: float, signals: Signals) -> Floats:
    """Returns the (n,) smoothed sum of all signals, with the cosine of the query that feedback has moved."""
    agreement = model_agreement(signals)
    others = cheap_scores(settings, first_stage_weight, signals.cheap, agreement)
    fused = others + z_scores(signals.cosines)
    feedback_weight = agreement * FEEDBACK_WEIGHT
    if feedback_weight and settings.feedback_passages:
        moved = _moved(signals, fused, settings.feedback_passages, feedback_weight)
        fused = others + z_scores(signals.vectors @ moved)
    return _smoothed(fused, signals.vectors, settings.smoothing_weight)


def with_unread(cheap: Floats, read: npt.NDArray[np.intp], fused: Floats) -> Floats:
    """Returns the (n,) scores of a list of which some passages were read.

    Args:
        cheap: (n,) scores of `cheap_scores`, by which those that were not read stand below all others.
        read: (m,) places of the passages that were read, at least one.
        fused: (m,) their scores.
    """
    scores = cheap - cheap.max() + fused.min() - 1.0
    scores[read] = fused
    return scores


def _smoothed(scores: Floats, vectors: Matrix, weight: float) -> Floats:
    """Adds to each of n scores the mean of those of its nearest passages, both as z-scores.

    Passages that are alike are relevant to the same queries (score regularisation, Diaz, CIKM 2005).
    """
    nearest = min(_NEIGHBOURS, len(scores) - 1)
    if not weight or nearest < 1:
        return scores
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    places = np.argpartition(-cosines, nearest - 1, axis=1)[:, :nearest]
    return z_scores(scores) + weight * z_scores(scores[places].mean(axis=1))


def model_agreement(signals: Signals) -> float:
    """Returns 0 to 1: how far the two models agree about the passages, by the correlation of their scores.

    Over texts that are foreign to one of them, such as names of functions, they disagree. The sparse score, which is
    that of the smaller model, and the feedback, which trusts the leading passages, then count less.
    """
    if signals.cheap.sparse is None:
        return 1.0
    correlation = float(np.mean(z_scores(signals.cheap.sparse) * z_scores(signals.cosines)))
    return min(max(correlation / FULL_AGREEMENT, 0.0), 1.0)


def _moved(signals: Signals, fused: Floats, passages: int, weight: float) -> Vector:
    """Moves the query's unit vector towards the leading passages, weighted by a softmax of their scores."""
    first = np.argsort(-fused, kind="stable")[:passages]
    relevant = np.zeros(len(fused), dtype=np.float32)
    relevant[first] = np.exp(fused[first] - fused.max())
    moved = rocchio(
        torch.from_numpy(signals.query)[None],
        torch.from_numpy(signals.vectors)[None],
        torch.from_numpy(relevant)[None],
        weights=(1 - weight, weight, 0.0),
    )
    return functional.normalize(moved, dim=-1)[0].numpy()
