"""Cross-validation of a choice: its value on queries that the choice did not see."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rerank_eval.statistics import Values

_PERMUTATIONS = 2000
#: Differences of cost below a quarter are noise, and decide nothing.
_SIMILAR_COST = 1.25


def choose(values: Values, costs_ms: Sequence[float], defaults: Sequence[int] = ()) -> int:
    """The cheapest configuration that is no worse than the best one by more than one standard error.

    This is the one-standard-error rule (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3), here
    with the error of the paired difference. Among configurations of about the same cost, a default one precedes the
    one with the highest mean, because the best of many on few queries is often worse on others.

    Args:
        values: (configurations, queries), at least two queries.
        costs_ms: of each configuration.
        defaults: rows of the configurations with default weights.
    """
    means, costs = values.mean(axis=1), np.asarray(costs_ms)
    losses = values[means.argmax()] - values
    is_level = losses.mean(axis=1) <= losses.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
    is_cheap = costs <= _SIMILAR_COST * costs[is_level].min()
    eligible = is_level & is_cheap
    of_defaults = eligible & np.isin(np.arange(len(means)), defaults)
    return int(np.where(of_defaults if of_defaults.any() else eligible, means, -np.inf).argmax())


def cross_validate(
    values: Values, costs_ms: Sequence[float], folds: int, seed: int, defaults: Sequence[int] = ()
) -> tuple[Values, list[int]]:
    """Divides the queries at random into `folds` parts, and chooses for each part by the other ones.

    Args:
        values, costs_ms, defaults: as for `choose`.
        folds: 2 or more; at most one for each query is used.

    Returns:
        (queries,) the value of each query by the configuration that was chosen without its part; and those choices.
    """
    queries = np.random.default_rng(seed).permutation(values.shape[1])
    held_out, chosen = np.empty(len(queries)), list[int]()
    for part in np.array_split(queries, min(folds, len(queries))):
        chosen.append(choose(np.delete(values, part, axis=1), costs_ms, defaults))
        held_out[part] = values[chosen[-1], part]
    return held_out, chosen


def p_of_gain(
    values: Values,
    costs_ms: Sequence[float],
    folds: int,
    seed: int,
    defaults: Sequence[int] = (),
    permutations: int = _PERMUTATIONS,
) -> float:
    """One-sided p of the held-out gain over the first configuration: how often models without effect gain as much.

    A sign-flip permutation test of the whole choice: for random queries, the differences of all configurations from the
    first one change their signs together, and the cross-validation is done again. A t-test of the held-out values would
    take them as independent, but folds that choose the same configuration are not: of a hundred configurations of pure
    noise, it finds a gain too often.

    Args:
        values, costs_ms, folds, seed, defaults: as for `cross_validate`.
        permutations: number of repetitions.
    """
    differences, rng = values - values[0], np.random.default_rng(seed)

    def gain(signs: Values) -> float:
        return float(cross_validate(differences * signs, costs_ms, folds, seed, defaults)[0].mean())

    found, queries = gain(np.ones(values.shape[1])), values.shape[1]
    as_large = sum(gain(rng.choice([-1.0, 1.0], queries)) >= found for _ in range(permutations))
    return (1 + as_large) / (1 + permutations)
