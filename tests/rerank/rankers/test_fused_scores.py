"""The arithmetic of a fusion, apart from windows: equal signals, and what a correction reads."""

from __future__ import annotations

import numpy as np
import pytest

from rerank.config import FusionModel
from rerank.rankers.fused_scores import CheapSignals, Signals, fused_scores, model_agreement, signals_beside_others

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
def test_scores_and_what_a_correction_reads_are_finite(n: int, sparse: bool) -> None:
    of_list = signals(n, sparse)
    fused = fused_scores(SETTINGS, 0.25, of_list)
    beside_others = signals_beside_others(of_list, fused)
    assert fused.shape == (n,)
    assert beside_others.shape == (n, 5)
    assert np.isfinite(fused).all()
    assert np.isfinite(beside_others).all()


def test_signals_beside_others_are_z_scores_and_the_agreement() -> None:
    of_list = signals(20)
    columns = signals_beside_others(of_list, fused_scores(SETTINGS, 0.25, of_list)).T
    for column in columns[:4]:
        assert (column.mean(), column.std()) == pytest.approx((0, 1), abs=1e-5)
    assert np.corrcoef(columns[1], of_list.cosines)[0, 1] == pytest.approx(1)
    assert set(columns[4].tolist()) == {np.float32(model_agreement(of_list))}


def test_models_agree_wholly_without_a_sparse_encoder() -> None:
    assert model_agreement(signals(5, sparse=False)) == 1.0
