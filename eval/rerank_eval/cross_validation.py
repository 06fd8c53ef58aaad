"""Cross-validation of a choice: its value on queries that the choice did not see."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rerank_eval.statistics import Values

#: Differences of cost below a quarter are noise, and decide nothing.
_SIMILAR_COST = 1.25


def choose(values: Values, costs_ms: Sequence[float]) -> int:
    """The cheapest configuration that is no worse than the best one by more than one standard error.

    This is the one-standard-error rule (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3), here
    with the error of the paired difference. Among those of about the same cost, it is the one with the highest mean.

    Args:
        values: (configurations, queries), at least two queries.
        costs_ms: of each configuration.
    """
    means, costs = values.mean(axis=1), np.asarray(costs_ms)
    losses = values[means.argmax()] - values
    is_level = losses.mean(axis=1) <= losses.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
    is_cheap = costs <= _SIMILAR_COST * costs[is_level].min()
    return int(np.where(is_level & is_cheap, means, -np.inf).argmax())


def cross_validate(values: Values, costs_ms: Sequence[float], folds: int, seed: int) -> tuple[Values, list[int]]:
    """Divides the queries at random into `folds` parts, and chooses for each part by the other ones.

    Args:
        values, costs_ms: as for `choose`.
        folds: 2 or more; at most one for each query is used.

    Returns:
        (queries,) the value of each query by the configuration that was chosen without its part; and those choices.
    """
    queries = np.random.default_rng(seed).permutation(values.shape[1])
    held_out, chosen = np.empty(len(queries)), list[int]()
    for part in np.array_split(queries, min(folds, len(queries))):
        chosen.append(choose(np.delete(values, part, axis=1), costs_ms))
        held_out[part] = values[chosen[-1], part]
    return held_out, chosen
