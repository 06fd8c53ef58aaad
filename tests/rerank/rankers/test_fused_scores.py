"""The arithmetic of a fusion: a slow computation with the published numbers, and each number that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rerank.config import FusionModel
from rerank.rankers.fused_scores import (
    CheapSignals,
    Signals,
    cheap_scores,
    fused_scores,
    model_agreement,
    weight_by_list,
    with_unread,
)
from rerank.types import FirstStageKind, FirstStageWeight

SETTINGS = FusionModel(name="fusion", ranker="fusion")


def signals(n: int, sparse: bool = True, seed: int = 0) -> Signals:
    """Random signals of n passages in groups that are alike; first stage and words, and sparse and cosine, agree."""
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(n, 8)) + 2 * np.repeat(draw.normal(size=(n, 8)), 4, axis=0)[:n]
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    query = (vectors.mean(axis=0) + 0.2 * draw.normal(size=8)).astype(np.float32)
    lexical = draw.normal(size=n)
    of_sparse = draw.normal(size=n) + 4 * vectors @ query if sparse else None
    cheap = CheapSignals(draw.normal(size=n) + 0.7 * lexical, lexical, of_sparse)
    return Signals(cheap, vectors, query / np.linalg.norm(query))


def z(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return [(value - mean) / deviation if deviation > 1e-12 else 0.0 for value in values]


def slow_weight(asked: FirstStageWeight, of_list: CheapSignals) -> float:
    if not isinstance(asked, FirstStageKind):
        return asked
    pairs = zip(z(of_list.first_stage.tolist()), z(of_list.lexical.tolist()), strict=True)
    shared = sum(f * word for f, word in pairs) / len(of_list.lexical)
    weight = 1.25 * (1 - min(max(shared, 0.0), 1.0))
    return max(1.5, weight) if asked is FirstStageKind.NEURAL else weight


def slow_scores(of_list: Signals, weight: float) -> list[float]:
    """The scores of a list that is read whole, computed passage by passage in Python's floats."""
    cheap, vectors, query = of_list.cheap, of_list.vectors.astype(float), of_list.query.astype(float)
    sparse = [0.0] * len(vectors) if cheap.sparse is None else cheap.sparse.tolist()
    of_cosine = z([float(vector @ query) for vector in vectors])
    agreement = min(max(sum(a * b for a, b in zip(z(sparse), of_cosine, strict=True)) / len(sparse) / 0.3, 0.0), 1.0)
    parts = zip(z(cheap.first_stage.tolist()), z(cheap.lexical.tolist()), z(sparse), strict=True)
    others = [weight * f + 0.5 * word + agreement * 0.5 * s for f, word, s in parts]

    def with_cosines(query: np.ndarray) -> list[float]:
        cosines = z([float(vector @ query) for vector in vectors])
        return [o + c for o, c in zip(others, cosines, strict=True)]

    fused = with_cosines(query)
    leading = sorted(range(len(fused)), key=lambda row: -fused[row])[:3]
    shares = [float(np.exp(fused[row] - max(fused))) for row in leading]
    mean = sum(share / sum(shares) * vectors[row] for share, row in zip(shares, leading, strict=True))
    moved = query + 0.5 * (mean - query)
    fused = with_cosines(moved / np.linalg.norm(moved))
    if len(fused) == 1:
        return fused
    means = []
    for own, vector in enumerate(vectors):
        near = sorted((row for row in range(len(fused)) if row != own), key=lambda row: -float(vectors[row] @ vector))
        means.append(sum(fused[row] for row in near[:5]) / len(near[:5]))
    return [f + 0.25 * m for f, m in zip(z(fused), z(means), strict=True)]


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 40])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("asked", [0.0, 0.3, *FirstStageKind])
def test_scores_are_those_of_the_slow_computation(n: int, sparse: bool, asked: FirstStageWeight) -> None:
    for seed in range(5):
        of_list = signals(n, sparse, seed)
        weight = weight_by_list(SETTINGS, asked, of_list.cheap)
        assert weight == pytest.approx(slow_weight(asked, of_list.cheap))
        expected = slow_scores(of_list, weight)
        assert fused_scores(SETTINGS, weight, of_list).tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "number",
    [
        "beyond_words_weight",
        "lexical_weight",
        "sparse_weight",
        "feedback_passages",
        "feedback_weight",
        "smoothing_weight",
        "smoothing_passages",
    ],
)
def test_each_number_changes_the_order(number: str) -> None:
    """Of 20 lists of 40 passages, the first ten are others, or in another order, without it."""
    without = SETTINGS.model_copy(update={number: 0})
    changed = 0
    for seed in range(20):
        of_list = signals(40, seed=seed)
        first = [
            np.argsort(-fused_scores(one, weight_by_list(one, FirstStageKind.AUTO, of_list.cheap), of_list))[:10]
            for one in (SETTINGS, without)
        ]
        changed += first[0].tolist() != first[1].tolist()
    assert changed >= 15


def cheap_signals(first_stage: Sequence[float], lexical: Sequence[float]) -> CheapSignals:
    return CheapSignals(np.array(first_stage, dtype=float), np.array(lexical, dtype=float), None)


@pytest.mark.parametrize(
    ("first_stage", "lexical", "weight", "neural"),
    [
        ([4, 3, 2, 1], [8, 6, 4, 2], 0.0, 1.5),  # it is BM25
        ([1, 2, 3, 4], [4, 3, 2, 1], 1.25, 1.5),  # against the words: no negative share
        ([4, 3, 2, 1], [0, 0, 0, 0], 1.25, 1.5),  # no word is known
        ([5, 5, 5, 5], [4, 3, 2, 1], 1.25, 1.5),  # the first stage says nothing
        ([1, -1, 1, -1], [1, 1, -1, -1], 1.25, 1.5),
        ([3, 1, -1, -3], [1, -1, 1, -1], 1.25 * (1 - 2 / 20**0.5), 1.5),
        ([7], [3], 1.25, 1.5),
    ],
)
def test_first_stage_counts_by_what_it_says_beyond_the_words(
    first_stage: list[float], lexical: list[float], weight: float, neural: float
) -> None:
    of_list = cheap_signals(first_stage, lexical)
    assert weight_by_list(SETTINGS, FirstStageKind.AUTO, of_list) == pytest.approx(weight)
    assert weight_by_list(SETTINGS, FirstStageKind.NEURAL, of_list) == pytest.approx(neural)
    assert weight_by_list(SETTINGS, 0.3, of_list) == 0.3


def test_neural_weight_is_the_least_weight() -> None:
    settings = SETTINGS.model_copy(update={"neural_weight": 0.5})
    of_list = cheap_signals([1, 2, 3], [3, 2, 1])
    assert weight_by_list(settings, FirstStageKind.NEURAL, of_list) == pytest.approx(1.25)


def test_equal_signals_give_equal_scores() -> None:
    of_list = signals(1).select(np.zeros(5, dtype=np.intp))
    assert set(fused_scores(SETTINGS, 0.25, of_list).tolist()) == {0.0}


def test_passages_that_are_even_keep_the_order_of_the_first_stage() -> None:
    """Of two passages all z-scores are 1 and -1: words and cosine, .5 + 1, are against a neural first stage, 1.5."""
    vectors = np.eye(2, dtype=np.float32)
    for query in ([0.6, 0.8], [0.28, 0.96]):
        of_list = Signals(cheap_signals([2, 1], [1, 3]), vectors, np.array(query, dtype=np.float32))
        assert np.argsort(-fused_scores(SETTINGS, 1.5, of_list), kind="stable").tolist() == [0, 1]


def test_cheap_scores_are_the_sum_without_the_cosine() -> None:
    cheap = cheap_signals([1, 2, 3], [3, 1, 2])
    expected = [2 * f + 0.5 * word for f, word in zip(z([1, 2, 3]), z([3, 1, 2]), strict=True)]
    assert cheap_scores(SETTINGS, 2.0, cheap).tolist() == pytest.approx(expected)


def test_passages_that_are_not_read_stand_on_the_line_of_the_others() -> None:
    """The line through (5, -3), (7, -2) and (9, 2) is -1 + 1.25 (x - 7)."""
    scores = with_unread(np.array([5.0, 4.0, 7.0, 9.0, 1.0]), np.array([0, 2, 3]), np.array([-3.0, -2.0, 2.0]))
    assert scores.tolist() == pytest.approx([-3.0, -4.75, -2.0, 2.0, -8.5])


@pytest.mark.parametrize(
    ("read", "fused", "rest"), [([2.0, 1.0], [0.0, 4.0], 2.0), ([2.0, 2.0], [0.0, 4.0], 2.0), ([2.0], [3.0], 3.0)]
)
def test_line_does_not_fall_and_needs_two_points(read: list[float], fused: list[float], rest: float) -> None:
    scores = with_unread(np.array([*read, 0.5, -9.0]), np.arange(len(read)), np.array(fused))
    assert scores.tolist() == [*fused, rest, rest]


def test_no_step_separates_the_last_passage_that_is_read_from_the_next() -> None:
    """Before, the 31st stood below all that were read."""
    for seed in range(20):
        of_list = signals(60, seed=seed)
        cheap = cheap_scores(SETTINGS, 1.0, of_list.cheap)
        read = np.sort(np.argsort(-cheap)[:30])
        scores = with_unread(cheap, read, fused_scores(SETTINGS, 1.0, of_list.select(read)))
        next_one = np.argsort(-cheap)[30]
        assert scores[read].min() < scores[next_one] < np.median(scores[read])


def test_sparse_score_counts_nothing_where_the_models_disagree() -> None:
    of_list = signals(40)
    opposite = replace(of_list, cheap=replace(of_list.cheap, sparse=-of_list.cosines))
    without = replace(of_list, cheap=replace(of_list.cheap, sparse=None))
    assert fused_scores(SETTINGS, 1.0, opposite).tolist() == fused_scores(SETTINGS, 1.0, without).tolist()
    assert (model_agreement(opposite), model_agreement(without)) == (0.0, 1.0)
