"""Weights: chosen with a preference for the default, cross-validated, and tested as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rerank_eval.statistics import Comparison, compare
from rerank_training.fusion.verdict import Verdict
from rerank_training.fusion.weights import Weights, choose, cross_validate, p_of_gain

RNG = np.random.default_rng(0)
DEFAULT = RNG.uniform(0.3, 0.6, 60)


def table(gain: float, noise: float = 0.05) -> np.ndarray:
    """(6, 60): the default, four that differ by chance, and one with a gain."""
    by_chance = [DEFAULT + RNG.normal(0, noise, 60) for _ in range(4)]
    return np.array([DEFAULT, *by_chance, DEFAULT + gain + RNG.normal(0, noise, 60)])


def test_weights_that_are_clearly_better_are_chosen() -> None:
    assert choose(table(0.1)) == 5


def test_default_is_chosen_where_others_are_better_by_less_than_an_error() -> None:
    values = np.array([DEFAULT, DEFAULT + np.where(np.arange(60) % 2, 0.101, -0.1)])
    assert choose(values) == 0
    assert choose(np.array([DEFAULT, DEFAULT])) == 0


def test_held_out_values_are_those_of_weights_that_others_chose() -> None:
    values = table(0.1)
    held_out = cross_validate(values, seed=0)
    assert held_out == pytest.approx(values[5])


def test_weights_that_help_one_list_only_gain_nothing_on_it() -> None:
    values = np.array([DEFAULT, DEFAULT])
    values[1, 7] += 0.4
    assert cross_validate(values, seed=0) == pytest.approx(DEFAULT)


def test_gain_is_significant_and_chance_is_not() -> None:
    assert p_of_gain(table(0.05), seed=0, permutations=100) < 0.05
    assert p_of_gain(table(0.0), seed=0, permutations=100) > 0.05


def compared(gain: float, noise: float = 0.01) -> Comparison:
    return compare(DEFAULT + gain + RNG.normal(0, noise, 60), DEFAULT)


WORSE, SAME, BETTER, BEST = compared(-0.1), compared(0.0, 0.0), compared(0.05), compared(0.1)


@pytest.mark.parametrize(
    ("weights", "correction", "beside", "served"),
    [
        (SAME, None, None, "default"),
        (WORSE, None, None, "default"),
        (BETTER, None, None, "weights"),
        (SAME, BETTER, SAME, "correction"),
        (SAME, WORSE, SAME, "default"),
        (BETTER, BEST, BETTER, "correction"),
        (BETTER, BETTER, BEST, "weights"),
    ],
)
def test_simplest_that_is_not_beaten_is_served(
    weights: Comparison, correction: Comparison | None, beside: Comparison | None, served: str
) -> None:
    verdict = Verdict(WORSE, weights, Weights(0.5, 0.4), correction, beside)
    assert verdict.to_serve == served


def test_first_stage_that_beats_the_default_is_named() -> None:
    lines = Verdict(BETTER, SAME, Weights(0.25, 0.6)).lines
    assert any("serve the model identity" in line for line in lines(Path("out")))
