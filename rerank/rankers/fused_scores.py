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
from rerank.types import FirstStageKind, FirstStageWeight, Matrix, Vector

Floats: TypeAlias = npt.NDArray[np.float64]
#: Correlation of sparse score and cosine from which the sparse score has its whole weight.
FULL_AGREEMENT = 0.3
#: Cosines of equal texts differ by so much, and equal sums in later digits. Z-scores would turn that into an order.
_ROUNDING, _DIGITS = 1e-6, 9


@dataclass(frozen=True, slots=True)
class CheapSignals:
    """The signals of n passages of a list that need no vector.

    Attributes:
        first_stage: (n,) scores of the first stage, equal ones if the list has none.
        lexical: (n,) BM25 of the query with the texts.
        sparse: (n,) scores of the learned sparse vectors; None if there is no sparse encoder.
    """

    first_stage: Floats
    lexical: Floats
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


def weight_by_list(settings: FusionModel, asked: FirstStageWeight, signals: CheapSignals) -> float:
    """The weight of the first stage in a list: the one asked for if it is a number, otherwise by what its scores add.

    BM25's own scores say hardly more than the lexical signal, those of a dense model much more. Their correlation over
    the list tells, so that no client has to know what its first stage is.

    Args:
        signals: of the whole list.
    """
    if not isinstance(asked, FirstStageKind):
        return asked
    shared = float(np.mean(z_scores(signals.first_stage) * z_scores(signals.lexical)))
    weight = settings.beyond_words_weight * (1 - min(max(shared, 0.0), 1.0))
    return max(weight, settings.neural_weight) if asked is FirstStageKind.NEURAL else weight


def cheap_scores(settings: FusionModel, weight: float, signals: CheapSignals, agreement: float = 1.0) -> Floats:
    """Returns the (n,) weighted sum of the z-scores of the signals that need no vector."""
    scores = weight * z_scores(signals.first_stage)
    scores += settings.lexical_weight * z_scores(signals.lexical)
    if signals.sparse is not None:
        scores += agreement * settings.sparse_weight * z_scores(signals.sparse)
    return scores


def model_agreement(signals: Signals) -> float:
    """Returns 0 to 1: how far the two models agree about the passages, by the correlation of their scores.

    Over texts that are foreign to one of them, such as names of functions, they disagree. The sparse score, which is
    that of the smaller model, then counts less.
    """
    if signals.cheap.sparse is None:
        return 1.0
    correlation = float(np.mean(z_scores(signals.cheap.sparse) * z_scores(signals.cosines)))
    return min(max(correlation / FULL_AGREEMENT, 0.0), 1.0)


def fused_scores(settings: FusionModel, weight: float, signals: Signals) -> Floats:
    """Returns the (n,) smoothed sum of all signals, with the cosine of the query that feedback has moved."""
    others = cheap_scores(settings, weight, signals.cheap, model_agreement(signals))
    fused = others + _z_scores_of_cosines(signals.cosines)
    if settings.feedback_weight and settings.feedback_passages:
        moved = _moved(signals, fused, settings.feedback_passages, settings.feedback_weight)
        fused = others + _z_scores_of_cosines(signals.vectors @ moved)
    fused = fused.round(_DIGITS)
    return _smoothed(fused, signals.vectors, settings.smoothing_weight, settings.smoothing_passages)


def _z_scores_of_cosines(cosines: npt.NDArray[np.floating]) -> Floats:
    return z_scores(cosines) if np.ptp(cosines) > _ROUNDING else np.zeros(len(cosines))


def with_unread(cheap: Floats, read: npt.NDArray[np.intp], fused: Floats) -> Floats:
    """Returns the (n,) scores of a list of which some passages were read, all on one scale.

    A passage that was not read gets the score that a line through the others predicts (least squares), so that it may
    stand above one whose cosine is low. The line does not fall: with few passages, that would be chance.

    Args:
        cheap: (n,) scores of `cheap_scores`.
        read: (m,) places of the passages that were read, at least one.
        fused: (m,) their scores.
    """
    of_read = cheap[read] - cheap[read].mean()
    spread = float(of_read @ of_read)
    slope = max(0.0, float(of_read @ fused) / spread) if spread > 0 else 0.0
    scores = fused.mean() + slope * (cheap - cheap[read].mean())
    scores[read] = fused
    return scores


def _smoothed(scores: Floats, vectors: Matrix, weight: float, passages: int) -> Floats:
    """Adds to each of n scores the mean of those of its nearest passages, both as z-scores.

    Passages that are alike are relevant to the same queries (score regularisation, Diaz, CIKM 2005).
    """
    nearest = min(passages, len(scores) - 1)
    if not weight or nearest < 1:
        return scores
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    places = np.argpartition(-cosines, nearest - 1, axis=1)[:, :nearest]
    return z_scores(scores) + weight * z_scores(scores[places].mean(axis=1))


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
