"""The arithmetic of a fusion: a slow computation with the published numbers, and each number that it rests on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rerank.config import FusionModel
from rerank.rankers import fused_scores as arithmetic
from rerank.rankers.fused_scores import (
    CheapSignals,
    Floats,
    Signals,
    cheap_scores,
    first_stage_support,
    fused_scores,
    list_scores,
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


def slow_agreement(one: Sequence[float], other: Sequence[float]) -> float:
    return min(max(sum(a * b for a, b in zip(z(one), z(other), strict=True)) / len(one) / 0.3, 0.0), 1.0)


def slow_weight(given: FirstStageWeight, of_list: CheapSignals) -> float:
    if not isinstance(given, FirstStageKind):
        return given
    pairs = zip(z(of_list.first_stage.tolist()), z(of_list.lexical.tolist()), strict=True)
    shared = sum(f * word for f, word in pairs) / len(of_list.lexical)
    return 1.25 if given is FirstStageKind.NEURAL else 1.25 * (1 - min(max(shared, 0.0), 1.0))


def slow_support(cheap: CheapSignals, read: Signals) -> float:
    if cheap.sparse is None or read.cheap.sparse is None:
        return 1.0
    of_models = slow_agreement(read.cheap.sparse.tolist(), read.cosines.tolist())
    signals_of = (z(cheap.lexical.tolist()), z(cheap.sparse.tolist()))
    whole = slow_agreement(cheap.first_stage.tolist(), [0.5 * w + 0.5 * s for w, s in zip(*signals_of, strict=True)])
    parts = (z(read.cheap.lexical.tolist()), z(read.cheap.sparse.tolist()), z(read.cosines.tolist()))
    others = [0.5 * w + 0.5 * of_models * s + c for w, s, c in zip(*parts, strict=True)]
    support = max(whole, slow_agreement(read.cheap.first_stage.tolist(), others))
    return 1 - min(cheap.known_words / 0.6, 1.0) * (1 - support)


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
    leading = sorted(range(len(fused)), key=lambda row: -fused[row])[:5]
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
@pytest.mark.parametrize("given", [0.0, 0.3, *FirstStageKind])
def test_scores_are_those_of_the_slow_computation(n, sparse, given):
    for seed in range(5):
        of_list = signals(n, sparse, seed)
        weight = weight_by_list(SETTINGS, given, of_list.cheap)
        assert weight == pytest.approx(slow_weight(given, of_list.cheap))
        expected = slow_scores(of_list, weight)
        assert fused_scores(SETTINGS, weight, of_list).tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("given", [0.3, *FirstStageKind])
@pytest.mark.parametrize("meaning", [1.0, 0.0, -1.0])
def test_scores_of_a_list_are_those_of_the_slow_computation(sparse, given, meaning):
    """Also if the first stage says nothing, or the opposite of all others."""
    counted = set()
    for seed in range(5):
        of_list = signals(40, sparse, seed)
        first_stage = meaning * of_list.cosines + 0.1 * np.random.default_rng(seed).normal(size=40)
        words = of_list.cheap.lexical + 3 * of_list.cosines
        of_list = replace(of_list, cheap=replace(of_list.cheap, first_stage=first_stage, lexical=words))
        read = np.sort(np.argsort(-cheap_scores(SETTINGS, 1.0, of_list.cheap))[:30])
        of_read = of_list.select(read)
        support = slow_support(of_list.cheap, of_read) if given is FirstStageKind.AUTO else 1.0
        scores, weight = list_scores(SETTINGS, given, of_list.cheap, read, of_read)
        assert weight == pytest.approx(support * slow_weight(given, of_list.cheap))
        assert scores[read].tolist() == pytest.approx(slow_scores(of_read, weight), abs=1e-4)
        counted.add(round(support, 6))
    assert (counted == {1.0}) == (given is not FirstStageKind.AUTO or not sparse or meaning == 1)


def served(settings: FusionModel, of_list: Signals) -> Floats:
    """The scores of a list without vectors of an index."""
    cheap = cheap_scores(settings, weight_by_list(settings, FirstStageKind.AUTO, of_list.cheap), of_list.cheap)
    read = np.sort(np.argsort(-cheap, kind="stable")[: settings.cosine_depth or len(cheap)])
    return list_scores(settings, FirstStageKind.AUTO, of_list.cheap, read, of_list.select(read))[0]


@pytest.mark.parametrize(
    "number",
    [
        *("beyond_words_weight", "lexical_weight", "sparse_weight", "cosine_depth", "similar_passages"),
        *("smoothing_weight", "FULL_AGREEMENT", "FULL_KNOWLEDGE"),
    ],
)
def test_each_number_changes_the_order(number, monkeypatch):
    """Of 20 lists of 60 passages, the first ten are others, or in another order, without it."""
    lists = [signals(60, seed=seed) for seed in range(20)]
    # words say something about the cosine, but less than the sparse score
    known = 0.3 if number == "FULL_KNOWLEDGE" else 1.0
    lists = [
        replace(one, cheap=replace(one.cheap, lexical=one.cheap.lexical + 2 * one.cosines, known_words=known))
        for one in lists
    ]
    before = [np.argsort(-served(SETTINGS, of_list))[:10].tolist() for of_list in lists]
    without = SETTINGS
    if number.isupper():
        monkeypatch.setattr(arithmetic, number, 1e-9)
    else:
        without = SETTINGS.model_copy(update={number: 0})
    after = [np.argsort(-served(without, of_list))[:10].tolist() for of_list in lists]
    assert sum(one != other for one, other in zip(before, after, strict=True)) >= 10


def cheap_signals(first_stage: Sequence[float], lexical: Sequence[float]) -> CheapSignals:
    return CheapSignals(np.array(first_stage, dtype=float), np.array(lexical, dtype=float), None)


@pytest.mark.parametrize(
    ("first_stage", "lexical", "weight"),
    [
        ([4, 3, 2, 1], [8, 6, 4, 2], 0.0),  # it is BM25
        ([1, 2, 3, 4], [4, 3, 2, 1], 1.25),  # against the words: no negative share
        ([4, 3, 2, 1], [0, 0, 0, 0], 1.25),  # no word is known
        ([5, 5, 5, 5], [4, 3, 2, 1], 1.25),  # the first stage says nothing
        ([1, -1, 1, -1], [1, 1, -1, -1], 1.25),
        ([3, 1, -1, -3], [1, -1, 1, -1], 1.25 * (1 - 2 / 20**0.5)),
        ([7], [3], 1.25),
    ],
)
def test_first_stage_counts_by_what_it_says_beyond_the_words(first_stage, lexical, weight):
    of_list = cheap_signals(first_stage, lexical)
    assert weight_by_list(SETTINGS, FirstStageKind.AUTO, of_list) == pytest.approx(weight)
    assert weight_by_list(SETTINGS, FirstStageKind.NEURAL, of_list) == 1.25
    assert weight_by_list(SETTINGS, 0.3, of_list) == 0.3


@pytest.mark.parametrize(("known", "share"), [(0.0, 0.0), (0.03, 0.05), (0.3, 0.5), (0.6, 1.0), (1.0, 1.0)])
def test_words_count_as_far_as_they_are_known_and_wholly_without_a_first_stage(known, share):
    """Also where a part of the list is read, in which the first stage has equal scores."""
    first_stage, lexical = [1, 1, 3, 4], [1, 4, 2, 3]
    of_list = replace(cheap_signals(first_stage, lexical), known_words=known)
    expected = [1.25 * f + share * 0.5 * w for f, w in zip(z(first_stage), z(lexical), strict=True)]
    assert cheap_scores(SETTINGS, 1.25, of_list).tolist() == pytest.approx(expected)
    assert of_list.select(np.array([0, 1])).lexical_share == pytest.approx(share)
    without = replace(cheap_signals([0, 0, 0, 0], lexical), known_words=known)
    assert cheap_scores(SETTINGS, 0.0, without).tolist() == pytest.approx([0.5 * w for w in z(lexical)])


def test_first_stage_without_meaning_counts_little_and_a_stated_one_wholly():
    """Words, sparse scores and cosines agree with one another and not with it."""
    weights = []
    for seed in range(20):
        of_list = signals(100, seed=seed)
        draw, meaning = np.random.default_rng(seed), of_list.cosines
        cheap = CheapSignals(draw.normal(size=100), *(meaning + 0.1 * draw.normal(size=100) for _ in range(2)))
        read = np.argsort(-meaning)[:30]
        for given, weight in ((FirstStageKind.NEURAL, 1.25), (0.7, 0.7)):
            assert list_scores(SETTINGS, given, cheap, read, replace(of_list, cheap=cheap).select(read))[1] == weight
        of_read = replace(of_list, cheap=cheap).select(read)
        weights.append(list_scores(SETTINGS, FirstStageKind.AUTO, cheap, read, of_read)[1])
    assert np.mean(weights) < 0.5


def test_signals_that_say_nothing_say_nothing_against_the_first_stage():
    """The passages are alike to words and sparse encoder, the language is another one, or there is one model only."""
    of_list = signals(40)
    against = -of_list.cosines
    for cheap in (
        CheapSignals(against, np.zeros(40), np.ones(40)),
        CheapSignals(against, of_list.cosines, of_list.cosines, known_words=0.0),
        CheapSignals(against, of_list.cosines, None),
    ):
        assert first_stage_support(SETTINGS, cheap, replace(of_list, cheap=cheap)) == 1
    agreeing = CheapSignals(against, of_list.cosines, of_list.cosines)
    assert first_stage_support(SETTINGS, agreeing, replace(of_list, cheap=agreeing)) == 0


def test_models_and_the_rarity_of_words_count_as_far_as_the_words_are_known():
    """From .6 of all words on, the list is in the language of the table; without one, two signals remain."""
    of_list = signals(60)
    cheap = of_list.cheap
    read = np.sort(np.argsort(-cheap_scores(SETTINGS, 1.0, cheap))[:30])
    shares = {}
    for known in (0.0, 0.3, 0.6, 1.0):
        knowing = replace(of_list, cheap=replace(cheap, known_words=known))
        shares[known] = list_scores(SETTINGS, FirstStageKind.AUTO, knowing.cheap, read, knowing.select(read))
    shared = 1 - slow_weight(FirstStageKind.AUTO, cheap) / 1.25
    half_known = weight_by_list(SETTINGS, FirstStageKind.AUTO, replace(cheap, known_words=0.3))
    assert half_known == pytest.approx(1.25 * (1 - shared / 2))
    assert shares[0.6][0].tolist() == shares[1.0][0].tolist() != shares[0.3][0].tolist()
    of_read = cheap.select(read)
    expected = 1.25 * np.array(z(of_read.first_stage.tolist()))
    assert shares[0.0][1] == 1.25
    assert shares[0.0][0][read].tolist() == pytest.approx(expected.tolist())


def test_equal_signals_give_equal_scores():
    of_list = signals(1).select(np.zeros(5, dtype=np.intp))
    assert set(fused_scores(SETTINGS, 0.25, of_list).tolist()) == {0.0}


def test_passages_that_are_even_keep_the_order_of_the_first_stage():
    """Of two passages all z-scores are 1 and -1: words and cosine, .5 + 1, are against a first stage of 1.5."""
    vectors = np.eye(2, dtype=np.float32)
    for query in ([0.6, 0.8], [0.28, 0.96]):
        of_list = Signals(cheap_signals([2, 1], [1, 3]), vectors, np.array(query, dtype=np.float32))
        assert np.argsort(-fused_scores(SETTINGS, 1.5, of_list), kind="stable").tolist() == [0, 1]


def test_cheap_scores_are_the_sum_without_the_cosine():
    cheap = cheap_signals([1, 2, 3], [3, 1, 2])
    expected = [2 * f + 0.5 * word for f, word in zip(z([1, 2, 3]), z([3, 1, 2]), strict=True)]
    assert cheap_scores(SETTINGS, 2.0, cheap).tolist() == pytest.approx(expected)


def test_passages_that_are_not_read_stand_where_their_other_signals_stand_among_the_others():
    """Those that were read have 7 ± 2 by the other signals, and 3 ± 1 in the end."""
    scores = with_unread(np.array([5.0, 4.0, 9.0, 5.0, 9.0]), np.array([0, 2, 3, 4]), np.array([4.0, 2.0, 2.0, 4.0]))
    assert scores.tolist() == pytest.approx([4.0, 1.5, 2.0, 2.0, 4.0])


@pytest.mark.parametrize(("read", "fused"), [([2.0, 2.0], [0.0, 4.0]), ([2.0], [2.0])])
def test_passages_that_are_not_read_keep_their_order_where_the_others_are_equal(read, fused):
    scores = with_unread(np.array([*read, 0.5, -9.0]), np.arange(len(read)), np.array(fused))
    assert scores.tolist() == [*fused, 0.5, -9.0]


def test_order_beyond_the_passages_that_were_read_is_not_that_of_the_list():
    """A list whose first stage is a number at random: before, a flat line left the others in its order."""
    for seed in range(20):
        of_list = signals(200, seed=seed)
        about = np.random.default_rng(seed).permutation(200)[:43]
        of_words = np.isin(np.arange(200), about) + 0.1 * np.random.default_rng(seed + 1).normal(size=200)
        cheap = CheapSignals(1 / (61 + np.arange(200)), of_words, of_words + 0.2 * of_list.cosines)
        read = np.sort(np.argsort(-cheap_scores(SETTINGS, 0.0, cheap))[:30])
        scores, _ = list_scores(SETTINGS, 0.0, cheap, read, replace(of_list, cheap=cheap).select(read))
        assert len(np.intersect1d(np.argsort(-scores)[:43], about)) == 43


def test_no_step_separates_the_last_passage_that_is_read_from_the_next():
    """Before, the 31st came after all that were read."""
    above = 0
    for seed in range(20):
        of_list = signals(60, seed=seed)
        cheap = cheap_scores(SETTINGS, 1.0, of_list.cheap)
        read = np.sort(np.argsort(-cheap)[:30])
        scores = with_unread(cheap, read, fused_scores(SETTINGS, 1.0, of_list.select(read)))
        next_one = np.argsort(-cheap)[30]
        assert scores[next_one] < np.median(scores[read])
        above += scores[read].min() < scores[next_one]
    assert above >= 15


def test_sparse_score_counts_nothing_where_the_models_disagree():
    of_list = signals(40)
    opposite = replace(of_list, cheap=replace(of_list.cheap, sparse=-of_list.cosines))
    without = replace(of_list, cheap=replace(of_list.cheap, sparse=None))
    assert fused_scores(SETTINGS, 1.0, opposite).tolist() == fused_scores(SETTINGS, 1.0, without).tolist()
    assert (model_agreement(opposite), model_agreement(without)) == (0.0, 1.0)
