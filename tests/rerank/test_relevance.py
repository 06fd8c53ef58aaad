"""Relevance curves: probabilities that fall along the order, and mean the same in every list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rerank.relevance import OWN_LOG_ODDS, RelevanceCurve, log_odds

CURVE = RelevanceCurve(intercept=-3.0, slope=8.0, log_place=-0.5, encoder_sha256="e")
EVIDENCE = st.lists(st.floats(-1, 1), max_size=30)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def slow_pooled(values: list[float]) -> list[float]:
    """The falling values that are nearest: pools neighbours as long as one rises above the one before."""
    blocks = [[value] for value in values]
    while True:
        means = [sum(block) / len(block) for block in blocks]
        rising = next((place for place in range(1, len(blocks)) if means[place] > means[place - 1]), None)
        if rising is None:
            return [mean for mean, block in zip(means, blocks, strict=True) for _ in block]
        blocks[rising - 1 : rising + 1] = [blocks[rising - 1] + blocks[rising]]


@given(EVIDENCE)
def test_relevances_are_pooled_logistic_values(evidence: list[float]) -> None:
    found = CURVE.relevances(evidence)
    alone = [logistic(-3 + 8 * value - 0.5 * math.log1p(place)) for place, value in enumerate(evidence)]
    assert found == pytest.approx(slow_pooled(alone))
    assert sum(found) == pytest.approx(sum(alone)), "the expected number of relevant passages stays"


@given(EVIDENCE)
def test_relevances_are_probabilities_that_never_rise(evidence: list[float]) -> None:
    found = CURVE.relevances(evidence)
    assert len(found) == len(evidence)
    assert all(0 <= value <= 1 for value in found)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("probability", [0.0, 1e-300, 0.25, 0.5, 1.0])
def test_own_probability_stays_as_it_is(probability: float) -> None:
    assert OWN_LOG_ODDS.relevances([log_odds(probability)]) == pytest.approx([probability], abs=1e-12)


@pytest.mark.parametrize("evidence", [-1e308, -1e4, 1e4, 1e308])
def test_extreme_evidence_gives_a_probability(evidence: float) -> None:
    assert OWN_LOG_ODDS.relevances([evidence]) == pytest.approx([float(evidence > 0)])


@pytest.mark.parametrize("changed", [{"slope": -1.0}, {"log_place": 0.1}, {"intercept": math.nan}, {"other": 1.0}])
def test_curve_that_would_not_fall_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RelevanceCurve.model_validate(CURVE.model_dump() | changed)
