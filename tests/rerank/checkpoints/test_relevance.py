"""Relevance curves: probabilities by one signal, which mean the same in every list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rerank.checkpoints.relevance import OWN_LOG_ODDS, RelevanceCurve, log_odds, relevance
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.reranking.relevance import bundled_curves

CURVE = RelevanceCurve(signal="cosine", intercept=-3.0, slope=8.0, encoder_sha256="e")
OF_SPARSE = RelevanceCurve(signal="sparse", intercept=-4.0, slope=1.0, encoder_sha256="s")


@given(st.floats(-1, 1))
def test_relevance_is_the_logistic_function_of_the_signal(value: float) -> None:
    assert CURVE.probability(value) == pytest.approx(1 / (1 + math.exp(3 - 8 * value)))


def test_first_curve_whose_signal_is_known_counts() -> None:
    curves = (CURVE, OF_SPARSE)
    assert relevance(curves, {"sparse": 2.0, "cosine": 0.5}) == CURVE.probability(0.5)
    assert relevance(curves, {"sparse": 2.0}) == OF_SPARSE.probability(2.0)
    assert relevance(curves, {"score": 2.0}) is None
    assert relevance((), {"cosine": 0.5}) is None


@pytest.mark.parametrize("probability", [0.0, 1e-300, 0.25, 0.5, 1.0])
def test_own_probability_stays_as_it_is(probability: float) -> None:
    assert relevance(OWN_LOG_ODDS, {"score": log_odds(probability)}) == pytest.approx(probability, abs=1e-12)


@pytest.mark.parametrize("value", [-1e308, -1e4, 1e4, 1e308])
def test_extreme_signal_gives_a_probability(value: float) -> None:
    assert relevance(OWN_LOG_ODDS, {"score": value}) == pytest.approx(float(value > 0))


@pytest.mark.parametrize(
    "changed", [{"slope": -1.0}, {"log_place": -0.1}, {"intercept": math.nan}, {"signal": "bm25"}, {"other": 1.0}]
)
def test_curve_of_another_form_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RelevanceCurve.model_validate(CURVE.model_dump() | changed)


def test_bundled_curves_are_those_of_the_bundled_encoders(encoder: Encoder) -> None:
    cosine, sparse = bundled_curves()
    assert (cosine.signal, cosine.encoder_sha256) == ("cosine", encoder.id.sha256)
    assert (sparse.signal, sparse.encoder_sha256) == ("sparse", SparseEncoder(device="cpu").id.sha256)
