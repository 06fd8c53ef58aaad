"""Correlates the first stage's scores with a fusion's other signals, for one list and on average per caller.

The mean tells whether the candidates of a caller come from a lexical or a neural first stage. One list tells nothing.
Measured over 50 to 225 queries each: BM25 has .33 to .53, neural first stages have .55 to .74.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rerank.names import FirstStageKind
from rerank.retrieval.hybrid import z_scores
from rerank.types import MeanCorrelation

log = logging.getLogger(__name__)

Floats: TypeAlias = npt.NDArray[np.float64]

#: A shorter list, or one with fewer cosines, has no correlation worth a number.
_MIN_PASSAGES = 10
#: One list deviates from the mean by .2 (standard deviation), so the mean of so many by .02.
CHECKED_LISTS = 100
#: A mean above it is that of a neural first stage. Between the two limits both kinds occur.
_MAX_LEXICAL = 0.60
#: A mean below it is that of a lexical first stage.
_MIN_NEURAL = 0.50
_MAX_CALLERS = 1000


def first_stage_correlation(
    first_stage: Floats, sparse: Floats, cosines: Floats, weights: tuple[float, float]
) -> float | None:
    """Correlates the first stage's scores with the weighted sum of the other signals' z-scores, over a whole list.

    The cosine is read for the best passages by the other two only, and among these alone the correlation would be too
    low. So the cosine's regression on the other two, which is the same in the whole list, stands for the cosines that
    were not read (Pearson's correction for selection).

    Args:
        first_stage, sparse: (n,) scores.
        cosines: (n,) NaN where it was not read.
        weights: of the sparse score and of the cosine.

    Returns:
        -1 to 1; None if fewer than 10 passages or cosines are known, or if the signals are constant.
    """
    read = ~np.isnan(cosines)
    of_sparse, of_cosine = weights
    if len(first_stage) < _MIN_PASSAGES or (of_cosine and read.sum() < _MIN_PASSAGES):
        return None
    first_stage, sparse = z_scores(first_stage), z_scores(sparse)
    others, noise = of_sparse * sparse, 0.0
    if of_cosine and np.ptp(cosines[read]):
        design = np.stack([first_stage, sparse, np.ones(len(sparse))], axis=1)
        solution, *_ = np.linalg.lstsq(design[read], cosines[read], rcond=None)
        expected = design @ solution
        residuals = float(((cosines - expected)[read] ** 2).sum() / (read.sum() - design.shape[1]))
        scale = of_cosine / float(np.sqrt(expected.var() + residuals))
        others, noise = others + scale * expected, scale**2 * residuals
    variance = float(others.var()) + noise
    if not (first_stage.any() and variance):
        return None
    return float(np.clip((first_stage * others).mean() / np.sqrt(variance), -1, 1))


class CallerCorrelations:
    """Keeps the mean of the correlation for each caller and kind, for the latest 1,000 that sent a list.

    It is written on the event loop, and may be read on any thread.
    """

    def __init__(self) -> None:
        self._means: dict[tuple[str, FirstStageKind], MeanCorrelation] = {}

    def add(self, caller: str, kind: FirstStageKind, correlation: float) -> MeanCorrelation:
        """Counts a list of a caller who says that its first stage is of this kind. Logs a line if that looks wrong.

        Args:
            caller: the name of an API key, or the address of a connection, which counts without its port.
        """
        key = caller.rpartition(":")[0] or caller, kind
        before = self._means.pop(key, MeanCorrelation())
        lists = before.lists + 1
        mean = self._means[key] = MeanCorrelation(before.mean + (correlation - before.mean) / lists, lists)
        if len(self._means) > _MAX_CALLERS:
            del self._means[next(iter(self._means))]
        if lists == CHECKED_LISTS and (other := _better_kind(kind, mean.mean)):
            log.warning(
                "the candidates of %s seem to come from a %s first stage, but first_stage_kind is %s: over %d lists "
                "the mean correlation of their scores with the model's signals is %.2f; lexical first stages have .33 "
                "to .53, neural ones .55 to .74. If it is so, set first_stage_kind to %s, in the requests, for the "
                "key, or in the service's settings",
                key[0] or "this process",
                *(other, kind, lists, mean.mean, other),
            )
        return mean

    def means(self) -> Mapping[tuple[str, FirstStageKind], MeanCorrelation]:
        """Returns the means by the caller and the kind that it said."""
        return dict(self._means)

    def means_by_key(self) -> Mapping[tuple[str, FirstStageKind], MeanCorrelation]:
        """Returns the means by API key and kind. All callers without a key count as one, whose name is empty."""
        found: dict[tuple[str, FirstStageKind], MeanCorrelation] = {}
        for (caller, kind), each in self.means().items():
            key = "" if ":" in caller else caller, kind  # names of keys have no colon, addresses have
            found[key] = found.get(key, MeanCorrelation()).with_lists_of(each)
        return found


def _better_kind(kind: FirstStageKind, mean: float) -> FirstStageKind | None:
    """Returns the other kind, if the mean is clearly one of that kind."""
    if kind is FirstStageKind.LEXICAL:
        return FirstStageKind.NEURAL if mean > _MAX_LEXICAL else None
    return FirstStageKind.LEXICAL if mean < _MIN_NEURAL else None
