"""Relevance curves: probabilities by signals, which mean the same in every list."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from rerank.checkpoints.relevance import OWN_LOG_ODDS, RelevanceCurve, relevance
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.reranking.relevance import bundled_curves

CURVE = RelevanceCurve(intercept=-3.0, slopes={"cosine": 8.0}, encoders={"cosine": "e"})
OF_SPARSE = RelevanceCurve(intercept=-4.0, slopes={"sparse": 1.0}, encoders={"sparse": "s"})
OF_BOTH = RelevanceCurve(intercept=-3.0, slopes={"cosine": 4.0, "sparse": 0.5})


def test_first_curve_whose_signals_are_all_known_counts() -> None:
    curves = (OF_BOTH, CURVE, OF_SPARSE)
    both = {"sparse": 2.0, "cosine": 0.5}
    assert relevance(curves, both) == OF_BOTH.probability(both)
    assert relevance(curves, {"cosine": 0.5}) == CURVE.probability({"cosine": 0.5})
    assert relevance(curves, {"sparse": 2.0}) == OF_SPARSE.probability({"sparse": 2.0})
    assert relevance(curves, {"score": 2.0}) is None
    assert relevance((), {"cosine": 0.5}) is None


@pytest.mark.parametrize("value", [-1e308, -1e4, 1e4, 1e308])
def test_extreme_signal_gives_a_probability(value: float) -> None:
    assert relevance(OWN_LOG_ODDS, {"score": value}) == pytest.approx(float(value > 0))


@pytest.mark.parametrize(
    "changed",
    [{"slopes": {"cosine": -1.0}}, {"slopes": {}}, {"slopes": {"bm25": 1.0}}, {"intercept": math.nan}, {"other": 1.0}],
)
def test_curve_of_another_form_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RelevanceCurve.model_validate(CURVE.model_dump() | changed)


def test_bundled_curves_are_those_of_the_bundled_encoders(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    both, cosine, sparse = bundled_curves()
    ids = {"cosine": encoder.id.sha256, "sparse": sparse_encoder.id.sha256}
    assert (both.slopes.keys(), both.encoders) == (ids.keys(), ids)
    assert cosine.encoders | sparse.encoders == ids
    assert [list(curve.slopes) for curve in (cosine, sparse)] == [["cosine"], ["sparse"]]
