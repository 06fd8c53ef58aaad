"""A choice is judged on queries that it did not see, and prefers what is cheap where nothing else is known."""

from __future__ import annotations

import numpy as np
import pytest
from rerank_eval.cross_validation import choose, cross_validate, p_of_gain
from rerank_eval.statistics import t_test

RNG = np.random.default_rng


def test_clear_gain_is_chosen_at_any_cost() -> None:
    base = RNG(0).random(50)
    assert choose(np.array([base, base + 0.1]), [0.0, 1000.0]) == 1


def test_gain_below_one_standard_error_is_left_for_the_cheaper_one() -> None:
    """+.02 with a standard deviation of .1 over 16 queries: a standard error of .025, over 400 queries one of .005."""
    few, many = (np.array([np.zeros(n), np.tile([0.12, -0.08], n // 2)]) for n in (16, 400))
    assert choose(few, [0.0, 1000.0]) == 0
    assert choose(many, [0.0, 1000.0]) == 1


def test_among_similar_costs_the_mean_decides() -> None:
    values = np.array([np.zeros(20), np.full(20, 0.2), np.tile([0.31, 0.1], 10)])
    assert choose(values, [0.0, 10.0, 11.0]) == 2
    assert choose(values, [0.0, 10.0, 13.0]) == 1  # 30 % more, for less than a standard error


@pytest.mark.parametrize("folds", [2, 7, 20, 1000])
def test_value_of_a_query_is_that_of_a_choice_without_it(folds: int) -> None:
    """Each configuration is best on one query alone, by so much that whoever sees that query chooses it."""
    values = np.eye(20) * 1000
    held_out, chosen = cross_validate(values, [1.0] * 20, folds, seed=3)
    assert not held_out.any()
    assert len(chosen) == min(folds, 20)


def test_each_query_is_held_out_once() -> None:
    values = np.array([np.zeros(23), np.arange(1.0, 24.0)])
    held_out, chosen = cross_validate(values, [0.0, 1.0], 10, seed=0)
    assert held_out.tolist() == values[1].tolist()
    assert set(chosen) == {1}


def test_noise_gains_nothing() -> None:
    """Thirty configurations without effect: the best one on all queries seems to gain, the held-out values do not.

    Of 20 trials, one has p < .05 by chance.
    """
    seeming, significant = 0, 0
    for seed in range(20):
        values = np.vstack([np.full(40, 0.5), 0.5 + RNG(seed).normal(0, 0.2, (30, 40))])
        seeming += t_test(values[values.mean(axis=1).argmax()] - values[0]) < 0.05
        significant += p_of_gain(values, [0.0, *[10.0] * 30], 5, seed, permutations=49) < 0.05
    assert seeming >= 8
    assert significant <= 2


def test_gain_that_no_permutation_reaches_has_the_smallest_p() -> None:
    values = np.array([np.zeros(40), RNG(0).normal(0.2, 0.1, 40)])
    assert p_of_gain(values, [0.0, 10.0], 5, seed=0, permutations=99) == 0.01


def test_no_gain_is_reached_by_most_permutations() -> None:
    assert p_of_gain(np.zeros((3, 40)), [0.0, 1.0, 1.0], 5, seed=0, permutations=19) == 1.0
    assert p_of_gain(np.array([np.zeros(40), np.full(40, -0.1)]), [0.0, 1.0], 5, seed=0, permutations=19) > 0.5


def test_division_depends_on_the_seed_alone() -> None:
    values = RNG(1).random((50, 40))
    first, again, other = (cross_validate(values, [1.0] * 50, 4, seed)[0].tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_default_that_is_within_one_standard_error_is_kept() -> None:
    rng = np.random.default_rng(2)
    shared, noise = rng.normal(size=80), rng.normal(0.0, 0.3, 80)
    values = np.array([shared, shared + noise - noise.mean() + 0.01, shared + 0.5])
    assert choose(values[:2], [1.0, 1.0]) == 1
    assert choose(values[:2], [1.0, 1.0], defaults=[0]) == 0
    assert choose(values, [1.0, 1.0, 1.0], defaults=[0]) == 2
    of_folds = [cross_validate(values[:2], [1.0, 1.0], 10, 0, defaults)[1].count(0) for defaults in ([], [0])]
    assert of_folds[0] <= 2 < 9 <= of_folds[1]
