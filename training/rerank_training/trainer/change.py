"""A measure before and after a training, with a test of their difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rerank.errors import ConfigError

try:
    from scipy import stats
except ModuleNotFoundError as error:
    raise ConfigError(
        f"{error.name}, which evaluates held-out queries, is not installed; install rerank-listwise[train]"
    ) from error


@dataclass(frozen=True, slots=True)
class Change:
    """Mean of a measure before and after the training, with the two-sided p of the paired t-test."""

    before: float
    after: float
    p: float

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> Change:
        """The change of the values of the same queries or lists."""
        differs = len(before) > 1 and any(b != a for b, a in zip(before, after, strict=True))
        p = float(stats.ttest_rel(after, before).pvalue) if differs else 1.0
        return cls(fmean(before), fmean(after), p)
