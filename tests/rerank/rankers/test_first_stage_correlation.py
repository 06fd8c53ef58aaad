"""Correlation of the first stage with the other signals: of a whole list, though few cosines are known; its means."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from rerank.rankers.first_stage_correlation import CHECKED_LISTS, CallerCorrelations, first_stage_correlation
from rerank.retrieval.hybrid import z_scores
from rerank.types import FirstStageKind, MeanCorrelation

LEXICAL, NEURAL = FirstStageKind.LEXICAL, FirstStageKind.NEURAL
WEIGHTS = (0.4, 1.0)


def signals(n: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First stage, sparse score and cosine of n passages, with this share of a common part."""
    random = np.random.default_rng(seed)
    common = random.normal(size=n)
    first, sparse, cosine = (share * common + (1 - share) * random.normal(size=n) for _ in range(3))
    return first, sparse, cosine


def plain(first: np.ndarray, sparse: np.ndarray, cosine: np.ndarray) -> float:
    return float(np.corrcoef(first, WEIGHTS[0] * z_scores(sparse) + WEIGHTS[1] * z_scores(cosine))[0, 1])


def test_with_all_cosines_it_is_the_plain_correlation() -> None:
    lists = [signals(200, share, seed) for seed, share in enumerate((0.0, 0.3, 0.5, 0.8))]
    for each in lists:
        assert first_stage_correlation(*each, WEIGHTS) == pytest.approx(plain(*each), abs=0.02)


def test_cosines_of_the_best_passages_alone_give_the_correlation_of_the_whole_list() -> None:
    found, whole, among_the_best = [], [], []
    for seed in range(200):
        first, sparse, cosine = signals(100, 0.5, seed)
        best = np.argsort(-(0.3 * z_scores(first) + 0.4 * z_scores(sparse)))[:30]
        read = np.full(100, np.nan)
        read[best] = cosine[best]
        found.append(first_stage_correlation(first, sparse, read, WEIGHTS))
        whole.append(plain(first, sparse, cosine))
        among_the_best.append(plain(first[best], sparse[best], cosine[best]))
    assert np.mean(found) == pytest.approx(np.mean(whole), abs=0.06)
    assert np.mean(among_the_best) < np.mean(whole) - 0.2


def test_without_a_cosine_it_is_that_of_the_sparse_score() -> None:
    first, sparse, _ = signals(50, 0.5, 0)
    unread = np.full(50, np.nan)
    assert first_stage_correlation(first, sparse, unread, (0.4, 0.0)) == pytest.approx(np.corrcoef(first, sparse)[0, 1])


def test_short_and_constant_lists_have_none() -> None:
    first, sparse, cosine = signals(10, 0.5, 0)
    assert first_stage_correlation(first, sparse, cosine, WEIGHTS) is not None
    assert first_stage_correlation(first[:9], sparse[:9], cosine[:9], WEIGHTS) is None
    assert first_stage_correlation(np.ones(10), sparse, cosine, WEIGHTS) is None
    assert first_stage_correlation(first, np.ones(10), np.ones(10), WEIGHTS) is None
    assert first_stage_correlation(np.array([]), np.array([]), np.array([]), WEIGHTS) is None
    cosine[0] = np.nan
    assert first_stage_correlation(first, sparse, cosine, WEIGHTS) is None


def test_mean_is_that_of_a_caller_and_kind_on_any_port() -> None:
    correlations = CallerCorrelations()
    correlations.add("ipv4:10.0.0.1:4000", LEXICAL, 0.2)
    assert correlations.add("ipv4:10.0.0.1:4001", LEXICAL, 0.4) == MeanCorrelation(pytest.approx(0.3), 2)
    assert correlations.add("ipv4:10.0.0.1:4001", NEURAL, 0.7).lists == 1
    correlations.add("ipv4:10.0.0.2:1", LEXICAL, 0.6)
    correlations.add("shop", LEXICAL, 0.5)
    by_key = correlations.means_by_key()
    assert by_key["", LEXICAL] == MeanCorrelation(pytest.approx(0.4), 3)
    assert by_key["shop", LEXICAL] == MeanCorrelation(0.5, 1)


def test_means_are_of_the_latest_thousand_callers() -> None:
    correlations = CallerCorrelations()
    for number in range(1000):
        correlations.add(f"key{number}", LEXICAL, 0.5)
    correlations.add("key0", LEXICAL, 0.5)
    correlations.add("another", LEXICAL, 0.5)
    means = correlations.means()
    assert len(means) == 1000
    assert means["key0", LEXICAL].lists == 2
    assert ("key1", LEXICAL) not in means


@pytest.mark.parametrize(
    ("kind", "mean", "better"),
    [(LEXICAL, 0.66, "neural"), (LEXICAL, 0.55, ""), (NEURAL, 0.4, "lexical"), (NEURAL, 0.55, ""), (LEXICAL, 0.3, "")],
)
def test_wrong_kind_is_logged_once(
    kind: FirstStageKind, mean: float, better: str, caplog: pytest.LogCaptureFixture
) -> None:
    correlations = CallerCorrelations()
    with caplog.at_level(logging.WARNING):
        for _ in range(CHECKED_LISTS - 1):
            correlations.add("shop", kind, mean)
        assert not caplog.messages
        for _ in range(CHECKED_LISTS):
            correlations.add("shop", kind, mean)
    assert [f"set first_stage_kind to {better}" in message for message in caplog.messages] == [True] * bool(better)
