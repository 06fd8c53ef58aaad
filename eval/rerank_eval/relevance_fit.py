"""Fits and measures of relevance, on lists of evidence about passages that are judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from rerank.errors import CollectionError
from rerank.relevance import RelevanceCurve

Numbers: TypeAlias = npt.NDArray[np.float64]
Truths: TypeAlias = npt.NDArray[np.bool_]

#: Bins of equal width by which the calibration error is measured.
_BINS = 10
#: Share of the relevant results that a threshold keeps, in the measure of what it drops.
_KEPT = 0.95


class EvidenceList(NamedTuple):
    """The passages of one list in the final order: the evidence about each of them, and whether it is relevant."""

    evidence: Sequence[float]
    is_relevant: Sequence[bool]


class RelevanceMeasures(NamedTuple):
    """Measures of relevances as probabilities.

    Attributes:
        ece: expected calibration error over 10 bins of equal width: mean |mean relevance - share of relevant|.
        auc: probability that a relevant result of any query has more relevance than an irrelevant one of any query.
        dropped: share of the irrelevant results below the threshold that keeps 95 % of the relevant ones.
        silent: share of the lists with nothing relevant of which no result is above 0.5; nan without such lists.
        answered: share of the lists with a relevant passage of which a result is above 0.5.
    """

    ece: float
    auc: float
    dropped: float
    silent: float
    answered: float


def fit_curve(lists: Sequence[EvidenceList], encoder_sha256: str) -> RelevanceCurve:
    """The curve of the largest likelihood; one without the place if the place says nothing.

    Raises:
        CollectionError: relevant or irrelevant passages are missing, or more evidence means less relevance.
    """
    evidence, is_relevant, places = (np.concatenate([column(each) for each in lists]) for column in _COLUMNS)
    if len(set(is_relevant.tolist())) < 2:
        raise CollectionError(
            f"{int(is_relevant.sum())} of {len(is_relevant)} passages are relevant, and a fit needs relevant and other "
            "ones; give lists with judgements, or another --relevant-from"
        )
    intercept, slope, log_place = _logistic(np.stack([evidence, np.log1p(places)], axis=1), is_relevant)
    if log_place > 0:
        (intercept, slope), log_place = _logistic(evidence[:, None], is_relevant), 0.0
    if slope < 0:
        raise CollectionError(
            "passages with less evidence are relevant more often: the model's scores do not fit these judgements"
        )
    return RelevanceCurve(intercept=intercept, slope=slope, log_place=log_place, encoder_sha256=encoder_sha256)


def measure(curve: RelevanceCurve, lists: Sequence[EvidenceList], foreign: Sequence[EvidenceList]) -> RelevanceMeasures:
    """The measures of a curve on lists, and on `foreign` lists with nothing relevant."""
    found = [np.array(curve.relevances(each.evidence)) for each in lists]
    relevance, is_relevant = np.concatenate(found), np.concatenate([_is_relevant(each) for each in lists])
    threshold = np.quantile(relevance[is_relevant], 1 - _KEPT, method="lower")
    best = [max(curve.relevances(each.evidence), default=0.0) for each in foreign]
    return RelevanceMeasures(
        calibration_error(relevance, is_relevant),
        float(roc_auc_score(is_relevant, relevance)),
        float((relevance[~is_relevant] < threshold).mean()),
        float(np.mean([each <= 0.5 for each in best])) if best else float("nan"),
        float(np.mean([each[0] > 0.5 for each, judged in zip(found, lists, strict=True) if any(judged.is_relevant)])),
    )


def calibration_error(relevance: Numbers, is_relevant: Truths) -> float:
    """Expected calibration error (Guo et al., ICML 2017, equation 3), over bins of equal width."""
    bins = np.minimum((relevance * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((relevance - is_relevant)[bins == each].sum())) for each in range(_BINS)]
    return sum(gaps) / len(relevance)


def _logistic(features: Numbers, is_relevant: Truths) -> list[float]:
    """Intercept and weights of a logistic regression, with next to no regularization."""
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(features, is_relevant)
    return [float(fitted.intercept_[0]), *map(float, fitted.coef_[0])]


def _evidence(each: EvidenceList) -> Numbers:
    return np.array(each.evidence, dtype=float)


def _is_relevant(each: EvidenceList) -> Truths:
    return np.array(each.is_relevant, dtype=bool)


def _places(each: EvidenceList) -> Numbers:
    return np.arange(len(each.evidence), dtype=float)


_COLUMNS = (_evidence, _is_relevant, _places)
