"""Fits and measures of relevance, on lists of passages with their signals and judgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from rerank.checkpoints.relevance import RelevanceCurve, RelevanceCurves, Signal, relevance
from rerank.errors import CollectionError

Numbers: TypeAlias = npt.NDArray[np.float64]
Truths: TypeAlias = npt.NDArray[np.bool_]

#: Bins of equal width by which the calibration error is measured.
_BINS = 10
#: Share of the relevant results that a threshold keeps, in the measure of what it drops.
_KEPT = 0.95


class JudgedPassage(NamedTuple):
    """One passage of a list: the value of each of its signals, and whether it is judged relevant."""

    signals: Mapping[str, float]
    is_relevant: bool


#: The passages of one list.
JudgedList: TypeAlias = Sequence[JudgedPassage]


class RelevanceMeasures(NamedTuple):
    """Measures of relevances as probabilities.

    Attributes:
        ece: expected calibration error over 10 bins of equal width: mean |mean relevance - share of relevant|.
        auc: probability that a relevant result of any query has more relevance than an irrelevant one of any query.
        dropped: share of the irrelevant results below the threshold that keeps 95 % of the relevant ones.
        silent: share of the lists with nothing relevant where no result is above 0.5; nan without such lists.
        answered: share of the lists with a relevant passage where some result is above 0.5.
    """

    ece: float
    auc: float
    dropped: float
    silent: float
    answered: float


def fit_curve(lists: Sequence[JudgedList], signal: Signal, encoder_sha256: str) -> RelevanceCurve:
    """The curve of maximum likelihood over all passages that have the signal.

    Raises:
        CollectionError: relevant or irrelevant passages are missing, or more of the signal means less relevance.
    """
    known = [passage for each in lists for passage in each if signal in passage.signals]
    is_relevant = np.array([passage.is_relevant for passage in known], dtype=bool)
    if len(set(is_relevant.tolist())) < 2:
        raise CollectionError(
            f"{int(is_relevant.sum())} of {len(is_relevant)} passages are relevant, and a fit needs relevant and other "
            "ones; give lists with judgements, or another --relevant-from"
        )
    values = np.array([[passage.signals[signal]] for passage in known])
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(values, is_relevant)  # next to no regularization
    intercept, slope = float(fitted.intercept_[0]), float(fitted.coef_[0, 0])
    if slope < 0:
        raise CollectionError(
            f"passages with a lower {signal} are relevant more often: the model's scores do not fit these judgements"
        )
    return RelevanceCurve(signal=signal, intercept=intercept, slope=slope, encoder_sha256=encoder_sha256)


def measure(curves: RelevanceCurves, lists: Sequence[JudgedList], foreign: Sequence[JudgedList]) -> RelevanceMeasures:
    """The measures of curves on lists, and on `foreign` lists with nothing relevant."""
    found = [np.array([_relevance(curves, passage) for passage in each]) for each in lists]
    truths = [np.array([passage.is_relevant for passage in each], dtype=bool) for each in lists]
    relevance, is_relevant = np.concatenate(found), np.concatenate(truths)
    threshold = np.quantile(relevance[is_relevant], 1 - _KEPT, method="lower")
    best = [max((_relevance(curves, passage) for passage in each), default=0.0) for each in foreign]
    return RelevanceMeasures(
        calibration_error(relevance, is_relevant),
        float(roc_auc_score(is_relevant, relevance)),
        float((relevance[~is_relevant] < threshold).mean()),
        float(np.mean([each <= 0.5 for each in best])) if best else float("nan"),
        float(np.mean([each.max() > 0.5 for each, truth in zip(found, truths, strict=True) if truth.any()])),
    )


def _relevance(curves: RelevanceCurves, passage: JudgedPassage) -> float:
    return relevance(curves, passage.signals) or 0.0


def calibration_error(relevance: Numbers, is_relevant: Truths) -> float:
    """Expected calibration error (Guo et al., ICML 2017, equation 3), over bins of equal width."""
    bins = np.minimum((relevance * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((relevance - is_relevant)[bins == each].sum())) for each in range(_BINS)]
    return sum(gaps) / len(relevance)
