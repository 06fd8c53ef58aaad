"""A measure before and after a change, with a test of the difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rerank.errors import ConfigError

try:
    from scipy import stats
except ModuleNotFoundError as error:
    raise ConfigError(
        f"{error.name}, which evaluates held-out queries, is not installed; install rerank-listwise[train]"
    ) from error


#: Differences with a smaller p are taken for real.
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Change:
    """Mean of a measure before and after a change, over the same queries or lists.

    Attributes:
        low: lower end of the 95 % confidence interval of the difference, by Student's t; likewise `high`.
        p: of the difference.
        lists: number of the queries or lists.
    """

    name: str
    before: float
    after: float
    low: float
    high: float
    p: float
    lists: int

    @classmethod
    def of(cls, name: str, before: npt.ArrayLike, after: npt.ArrayLike, p: float | None = None) -> Change:
        """The change of the values of the same lists; `p` is that of the paired t-test unless it is given."""
        first, last = np.asarray(before, np.float64), np.asarray(after, np.float64)
        gains, n = last - first, len(first)
        mean, error = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
        half = error * float(stats.t.ppf(0.975, n - 1)) if error else 0.0
        of_t = float(stats.ttest_rel(last, first).pvalue) if error else 1.0
        return cls(name, float(first.mean()), float(last.mean()), mean - half, mean + half, of_t if p is None else p, n)

    @property
    def is_better(self) -> bool:
        """True if a gain is shown."""
        return self.p < SIGNIFICANT and self.low > 0
