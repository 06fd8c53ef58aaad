"""Significance of the difference between two systems, from their values on the same queries.

Comparisons of several systems with one are corrected by Holm (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

#: The value of one measure of a system for each query.
Values: TypeAlias = Sequence[float] | npt.NDArray[np.float64]

#: Differences with a smaller p-value count as significant.
SIGNIFICANT = 0.05
#: Values that differ by less than this are a tie: the sums in a measure may be rounded differently.
_TIE = 1e-9
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Comparison:
    """A system compared with a reference over the same queries.

    Attributes:
        queries: number of queries.
        reference: mean of the reference.
        difference: mean of system minus reference.
        interval: 95 % confidence interval of `difference`, by Student's t, within -1 to 1.
        p: two-sided p-value of the paired t-test; 1 for a single query, or if all differences are 0.
        wins, ties, losses: numbers of queries on which the system is better, equal and worse.
    """

    queries: int
    reference: float
    difference: float
    interval: tuple[float, float]
    p: float
    wins: int
    ties: int
    losses: int

    @property
    def mean(self) -> float:
        """The mean of the system."""
        return self.reference + self.difference

    @property
    def is_better(self) -> bool:
        """True if the difference is above 0, and significant."""
        return self.p < SIGNIFICANT and self.interval[0] > 0


def compare(system: Values, reference: Values) -> Comparison:
    """Compares the values of two systems on the same queries, in the same order.

    Raises:
        ValueError: the two have different lengths, or are empty.
    """
    if len(system) != len(reference) or not len(system):
        raise ValueError(f"{len(system)} values cannot be paired with {len(reference)}; give one of each per query")
    differences = np.asarray(system, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    differences[np.abs(differences) < _TIE] = 0.0
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return Comparison(
        queries=len(differences),
        reference=float(np.mean(reference)),
        difference=float(differences.mean()),
        interval=confidence_interval(differences.tolist(), lowest=-1.0),
        p=_t_test(differences),
        wins=wins,
        ties=len(differences) - wins - losses,
        losses=losses,
    )


def _t_test(differences: npt.NDArray[np.float64]) -> float:
    if len(differences) < 2 or not differences.any():
        return 1.0
    if differences.std() < _TIE:
        return 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for several comparisons, which controls the family-wise error rate; in the given order.

    Holm (1979): the k-th smallest of m p-values is multiplied by m - k + 1, and at least as large as the adjusted
    p-value before it.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda position: p_values[position])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[position]))
        adjusted[position] = highest
    return adjusted


def confidence_interval(values: Sequence[float], lowest: float = 0.0) -> tuple[float, float]:
    """95 % confidence interval of the mean, by Student's t, cut to the range of the values.

    Args:
        values: values of a measure, from `lowest` to 1. For a single value, the interval is the whole range.
        lowest: the smallest value that the measure can have.
    """
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return lowest, 1.0
    quantile = float(stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1))
    half_width = quantile * float(np.std(values, ddof=1)) / math.sqrt(n)
    return max(lowest, mean - half_width), min(1.0, mean + half_width)
