"""The arithmetic of a fusion, apart from windows: equal signals, few passages, passages that are not read."""

from __future__ import annotations

import numpy as np
import pytest

from rerank.config import FusionModel
from rerank.rankers.fused_scores import CheapSignals, Signals, fused_scores, model_agreement, with_unread

SETTINGS = FusionModel(name="fusion", ranker="fusion")


def signals(n: int, sparse: bool = True, seed: int = 0) -> Signals:
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(n, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = vectors.mean(axis=0)
    cheap = CheapSignals(draw.normal(size=n), draw.normal(size=n) if sparse else None)
    return Signals(cheap, vectors, query / np.linalg.norm(query))


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("sparse", [True, False])
def test_scores_are_finite(n: int, sparse: bool) -> None:
    fused = fused_scores(SETTINGS, 0.25, signals(n, sparse))
    assert fused.shape == (n,)
    assert np.isfinite(fused).all()


def test_equal_signals_give_equal_scores() -> None:
    of_list = signals(1).select(np.zeros(5, dtype=np.intp))
    assert set(fused_scores(SETTINGS, 0.25, of_list).tolist()) == {0.0}


def test_passages_that_are_not_read_stand_below_all_others_in_their_own_order() -> None:
    scores = with_unread(np.array([5.0, 9.0, 1.0, 7.0]), np.array([0, 3]), np.array([-3.0, -2.0]))
    assert scores.tolist() == [-3.0, -4.0, -12.0, -2.0]


def test_models_agree_wholly_without_a_sparse_encoder() -> None:
    assert model_agreement(signals(5, sparse=False)) == 1.0
