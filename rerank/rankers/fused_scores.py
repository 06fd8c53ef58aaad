"""Computes the scores of a fusion from the signals of a list's passages. Serving and training share it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from rerank.config import FusionModel
from rerank.retrieval.feedback import rocchio
from rerank.retrieval.hybrid import z_scores
from rerank.types import FirstStageKind, FirstStageWeight, Matrix, Vector

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.intp]
#: Two signals with at least this correlation agree wholly.
FULL_AGREEMENT = 0.3
#: A list counts as English, the language of the bundled models and the word table, if the table has at least this share
#: of its words: English lists of nine collections have .68 or more.
FULL_KNOWLEDGE = 0.6
#: Cosines within this range count as equal. Rounding lets cosines of equal texts differ, and z-scores would turn these
#: differences into an order.
_ROUNDING = 1e-6
#: Number of decimal places to which sums are rounded, so that equal sums tie.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class CheapSignals:
    """The signals of n passages of a list that need no vector.

    Attributes:
        first_stage: (n,) scores of the first stage, equal ones if the list has none.
        lexical: (n,) BM25 of the query with the texts, refitted to the first stage.
        sparse: (n,) scores of the learned sparse vectors; None if there is no sparse encoder.
        known_words: share, 0 to 1, of the words of the list that the table of words has.
        whole: the signals of the whole list, if these passages are a part of it; None: they are the whole list.
    """

    first_stage: Floats
    lexical: Floats
    sparse: Floats | None
    known_words: float = 1.0
    whole: CheapSignals | None = None

    def select(self, indices: Indices) -> CheapSignals:
        """The signals of the passages at these indices, in this order."""
        sparse = None if self.sparse is None else self.sparse[indices]
        whole = self.whole or self
        return replace(
            self, first_stage=self.first_stage[indices], lexical=self.lexical[indices], sparse=sparse, whole=whole
        )

    @property
    def knowledge(self) -> float:
        """0 to 1: how far the list is in the language of the models and the word table, by `known_words`.

        The weights of the models' signals are multiplied by it.
        """
        return min(self.known_words / FULL_KNOWLEDGE, 1.0)

    @property
    def lexical_share(self) -> float:
        """0 to 1: factor of the weight of BM25.

        Document frequencies in other languages are unknown, so BM25 is then worse than most first stages. Without a
        first stage it counts fully, because nothing else orders such a list.
        """
        scores = (self.whole or self).first_stage
        return self.knowledge if len({*scores.tolist()}) > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Signals:
    """All signals of n passages of a list.

    Attributes:
        cheap: signals of the same passages that need no vector.
        vectors: (n, D) unit vectors of the passages.
        query: (D,) unit vector.
    """

    cheap: CheapSignals
    vectors: Matrix
    query: Vector

    def select(self, indices: Indices) -> Signals:
        """The signals of the passages at these indices, in this order."""
        return Signals(self.cheap.select(indices), self.vectors[indices], self.query)

    @property
    def cosines(self) -> Floats:
        """(n,) cosines of the query with each passage."""
        return np.asarray(self.vectors @ self.query, dtype=np.float64)


def weight_by_list(settings: FusionModel, given: FirstStageWeight, signals: CheapSignals) -> float:
    """The weight of the first stage in a list: `given`, or a weight that falls with its correlation with BM25.

    A first stage of BM25 adds hardly anything to the lexical signal, a dense model much. The correlation of first stage
    and lexical signal over the list shows which it is, so that no client has to state it.

    Args:
        given: the weight, or the kind of the first stage; `auto` to find the kind by the correlation.
        signals: signals of the whole list.
    """
    if given is FirstStageKind.NEURAL:
        return settings.beyond_words_weight
    if given is not FirstStageKind.AUTO:
        return given
    shared = float(np.mean(z_scores(signals.first_stage) * z_scores(signals.lexical)))
    return settings.beyond_words_weight * (1 - signals.knowledge * min(max(shared, 0.0), 1.0))


def cheap_scores(settings: FusionModel, weight: float, signals: CheapSignals, agreement: float = 1.0) -> Floats:
    """Returns the (n,) weighted sum of the z-scores of the signals that need no vector."""
    scores = weight * z_scores(signals.first_stage)
    scores += signals.lexical_share * settings.lexical_weight * z_scores(signals.lexical)
    if signals.sparse is not None:
        scores += signals.knowledge * agreement * settings.sparse_weight * z_scores(signals.sparse)
    return scores


def list_scores(
    settings: FusionModel, given: FirstStageWeight, cheap: CheapSignals, read: Indices, signals: Signals
) -> tuple[Floats, float]:
    """Returns the (n,) scores of a list after some of its passages were read, and the weight of its first stage.

    Args:
        cheap: signals of the whole list.
        read: (m,) indices of the passages that were read, at least one.
        signals: all signals of these passages.
    """
    weight = weight_by_list(settings, given, cheap)
    if given is FirstStageKind.AUTO:
        weight *= first_stage_support(settings, cheap, signals)
    fused = fused_scores(settings, weight, signals)
    return with_unread(cheap_scores(settings, weight, cheap), read, fused), weight


def first_stage_support(settings: FusionModel, cheap: CheapSignals, signals: Signals) -> float:
    """Returns 0 to 1: how far the other signals agree with the first stage; 1 for lists in another language.

    Meaningless scores agree neither over the whole list nor over the passages that were read, so the larger agreement
    of the two counts: among passages chosen by several signals, those high in one signal tend to be low in another.
    Signals that are equal for all passages count as agreement.

    Args:
        cheap: signals of the whole list.
        signals: all signals of the passages that were read.
    """
    if cheap.sparse is None:
        return 1.0
    of_list = cheap_scores(settings, 0.0, cheap)
    of_read = cheap_scores(settings, 0.0, signals.cheap, model_agreement(signals))
    of_read += _z_scores_of_cosines(signals.cosines)
    pairs = ((cheap.first_stage, of_list), (signals.cheap.first_stage, of_read))
    support = max(_agreement(first_stage, others) if others.any() else 1.0 for first_stage, others in pairs)
    return 1 - cheap.knowledge * (1 - support)


def model_agreement(signals: Signals) -> float:
    """Returns 0 to 1: how far the sparse model and the encoder agree about the passages.

    They disagree over texts unlike the training data of one of them, such as names of functions. The sparse score,
    which comes from the smaller model, then counts less.
    """
    return 1.0 if signals.cheap.sparse is None else _agreement(signals.cheap.sparse, signals.cosines)


def _agreement(one: Floats, other: Floats) -> float:
    correlation = float(np.mean(z_scores(one) * z_scores(other)))
    return min(max(correlation / FULL_AGREEMENT, 0.0), 1.0)


def fused_scores(settings: FusionModel, weight: float, signals: Signals) -> Floats:
    """Returns the (n,) smoothed sum of all signals, with cosines of the query vector after feedback, see `_moved`."""
    others = cheap_scores(settings, weight, signals.cheap, model_agreement(signals))
    knowledge = signals.cheap.knowledge
    fused = others + knowledge * _z_scores_of_cosines(signals.cosines)
    if settings.similar_passages:
        moved = _moved(signals, fused, settings.similar_passages)
        fused = others + knowledge * _z_scores_of_cosines(signals.vectors @ moved)
    fused = fused.round(_DIGITS)
    return _smoothed(fused, signals.vectors, knowledge * settings.smoothing_weight, settings.similar_passages)


def _z_scores_of_cosines(cosines: npt.NDArray[np.floating]) -> Floats:
    return z_scores(cosines) if np.ptp(cosines) > _ROUNDING else np.zeros(len(cosines))


def with_unread(cheap: Floats, read: Indices, fused: Floats) -> Floats:
    """Returns the (n,) scores of a list after some of its passages were read, all on one scale.

    An unread passage gets the score that is as many standard deviations from the mean of the read ones as its other
    signals are, so it may come before a passage with a low cosine. A least-squares line through the read passages would
    be too flat, because they were selected and so are similar.

    Args:
        cheap: (n,) scores of `cheap_scores`.
        read: (m,) indices of the passages that were read, at least one.
        fused: (m,) fused scores of these passages.
    """
    spread = cheap[read].std()
    scale = fused.std() / spread if spread > 0 else 1.0
    scores = fused.mean() + scale * (cheap - cheap[read].mean())
    scores[read] = fused
    return scores


def _smoothed(scores: Floats, vectors: Matrix, weight: float, passages: int) -> Floats:
    """Adds to each of n scores the weighted mean score of the nearest passages, both as z-scores.

    Passages that are alike are relevant to the same queries (score regularisation, Diaz, CIKM 2005).
    """
    nearest = min(passages, len(scores) - 1)
    if not weight or nearest < 1:
        return scores
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    indices = np.argpartition(-cosines, nearest - 1, axis=1)[:, :nearest]
    return z_scores(scores) + weight * z_scores(scores[indices].mean(axis=1))


def _moved(signals: Signals, fused: Floats, passages: int) -> Vector:
    """Returns the query's unit vector moved half-way to the leading passages, weighted by a softmax of their scores."""
    first = np.argsort(-fused, kind="stable")[:passages]
    relevant = np.zeros(len(fused), dtype=np.float32)
    relevant[first] = np.exp(fused[first] - fused.max())
    moved = rocchio(
        torch.from_numpy(signals.query)[None],
        torch.from_numpy(signals.vectors)[None],
        torch.from_numpy(relevant)[None],
        weights=(0.5, 0.5, 0.0),
    )
    return functional.normalize(moved, dim=-1)[0].numpy()
