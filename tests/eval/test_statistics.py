"""Statistics equal slow loops and scipy, and are defined for equal systems and single queries."""

import numpy as np
import pytest
from rerank_eval.statistics import compare, confidence_interval, holm
from scipy import stats


def random_differences(n: int, mean: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 0.1, n)


def test_t_test_equals_scipy_on_paired_samples():
    system, reference = random_differences(43, 0.5, seed=1), random_differences(43, 0.45, seed=2)
    assert compare(system.tolist(), reference.tolist()).p == pytest.approx(stats.ttest_rel(system, reference).pvalue)


def test_equal_systems_do_not_differ():
    same = compare([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert (same.difference, same.interval, same.p) == (0.0, (0.0, 0.0), 1.0)
    assert (same.wins, same.ties, same.losses) == (0, 3, 0)


def test_rounding_error_is_a_tie():
    result = compare([0.1 + 0.2, 0.5, 0.1], [0.3, 0.4, 0.2])
    assert (result.wins, result.ties, result.losses) == (1, 1, 1)


@pytest.mark.parametrize(("system", "reference"), [([], []), ([0.1], [0.1, 0.2])])
def test_values_that_cannot_be_paired_are_refused(system, reference):
    with pytest.raises(ValueError, match="cannot be paired"):
        compare(system, reference)


def test_holm_on_a_worked_example():
    """Sorted .005, .01, .03, .04: times 4, 3, 2, 1, and none smaller than the one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (holm([]), holm([0.04])) == ([], [0.04])


def test_interval_has_the_standard_deviation_of_a_sample():
    """Of ten values, whose deviation is 0.0471405; Student's t with nine degrees of freedom is 2.262157 at 97.5 %."""
    low, high = confidence_interval([0.5] * 8 + [0.4, 0.6])
    assert (low, high) == pytest.approx((0.5 - 2.262157 * 0.0471405 / 10**0.5, 0.5 + 2.262157 * 0.0471405 / 10**0.5))


def test_significant_loss_is_not_better():
    worse = [0.1, 0.12, 0.11, 0.09, 0.1]
    found = compare(worse, [value + 0.3 + value / 10 for value in worse])
    assert found.p < 0.05
    assert not found.is_better
