"""Signals of judged lists give the scores of serving; weights are chosen, cross-validated and tested as a whole."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rerank_eval.statistics import Comparison, compare
from rerank_training.fusion.training import WeightComparison
from rerank_training.fusion.weights import SignalList, Weights, choose, cross_validate, gain, served_scores, signals_of
from rerank_training.lists.training_list import TrainingList
from rich.console import Console

from rerank.config import FusionModel
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.fusion import FusionRanker
from rerank.types import FirstStageKind
from tests.fakes import ranking_of
from tests.training.small_lists import training_lists

SCORES = (0.5, 2.0, 1.0, -3.0, 0.25)
ITEM = replace(training_lists(3)[1], scores=SCORES)


def of_list(item: TrainingList, encoder: Encoder, sparse_encoder: SparseEncoder) -> SignalList:
    (found,) = signals_of([item], encoder, sparse_encoder, Console(quiet=True))
    return found


@pytest.mark.parametrize("depth", [3, 0])
@pytest.mark.parametrize("weight", [0.25, *FirstStageKind])
def test_scores_are_those_of_serving(encoder, sparse_encoder, depth, weight):
    settings = FusionModel(name="fusion", ranker="fusion", cosine_depth=depth)
    ranker = FusionRanker(settings, encoder, sparse_encoder)
    ranking = ranking_of(ranker, ITEM.query, ITEM.passages, first_stage=SCORES, weight=weight)
    found = served_scores(of_list(ITEM, encoder, sparse_encoder), settings, weight)
    # in bfloat16, a vector depends on the batch of its text
    np.testing.assert_allclose(found, ranking.scores, rtol=0.02, atol=0.05)
    assert np.isnan(ranking.cosines).sum() == (5 - depth if depth else 0)


def test_list_without_scores_counts_by_reciprocal_ranks(encoder, sparse_encoder):
    signals = of_list(replace(ITEM, scores=()), encoder, sparse_encoder).signals
    assert signals.cheap.first_stage.tolist() == pytest.approx([1 / (60 + rank) for rank in range(1, 6)])


def test_passages_keep_the_vectors_that_they_have(encoder, sparse_encoder):
    vector = np.eye(encoder.id.dimension, dtype=np.float32)[0]
    first, *others = ITEM.passages
    item = replace(ITEM, passages=(replace(first, vector=vector), *others))
    vectors = of_list(item, encoder, sparse_encoder).signals.vectors
    assert vectors[0].tolist() == vector.tolist()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-3)


DEFAULT = np.random.default_rng(0).uniform(0.3, 0.6, 60)


def table(shift: float, seed: int = 0) -> np.ndarray:
    """(6, 60): the default, four that differ by chance, and one with a gain."""
    noise = np.random.default_rng(seed).normal(0, 0.05, (5, 60))
    return np.array([DEFAULT, *(DEFAULT + noise[:4]), DEFAULT + shift + noise[4]])


def test_weights_that_are_clearly_better_are_chosen():
    assert choose(table(0.1)) == 5


def test_default_is_chosen_where_others_are_better_by_less_than_an_error():
    values = np.array([DEFAULT, DEFAULT + np.where(np.arange(60) % 2, 0.101, -0.1)])
    assert choose(values) == 0
    assert choose(np.array([DEFAULT, DEFAULT])) == 0


def test_held_out_values_are_those_of_weights_that_others_chose():
    values = table(0.1)
    held_out = cross_validate(values, seed=0)
    assert held_out == pytest.approx(values[5])


def test_weights_that_help_one_list_only_gain_nothing_on_it():
    values = np.array([DEFAULT, DEFAULT])
    values[1, 7] += 0.4
    assert cross_validate(values, seed=0) == pytest.approx(DEFAULT)


def test_gain_is_significant_and_chance_is_not():
    assert gain(table(0.05), seed=0, permutations=200).is_better
    assert not gain(table(0.0), seed=0, permutations=200).is_better


def test_interval_and_p_agree_and_the_gain_lies_between():
    """They were of a t-test and of a permutation test: +0.0109 (+0.0017 to +0.0200, p = 0.22)."""
    for shift in np.linspace(-0.02, 0.04, 7):
        found = gain(table(shift), seed=0, permutations=120)
        low, high = found.interval
        assert low <= found.difference <= high
        assert (found.p < 0.05) == (not low <= 0 <= high), shift


def test_interval_holds_the_gain_and_p_is_rarely_small_by_chance():
    """Of 40 trials of noise, a t-test on the values of held-out lists finds 7 gains."""
    by_chance = [gain(table(0.0, seed), seed, permutations=80) for seed in range(30)]
    assert sum(found.is_better for found in by_chance) <= 2
    assert sum(found.interval[0] <= 0 <= found.interval[1] for found in by_chance) >= 27


def test_weights_without_effect_gain_nothing():
    found = gain(np.array([DEFAULT, DEFAULT]), seed=0, permutations=100)
    assert (found.difference, found.interval, found.p) == (0.0, (0.0, 0.0), 1.0)


def compared(difference: float, noise: float = 0.01) -> Comparison:
    return compare(DEFAULT + difference + np.random.default_rng(1).normal(0, noise, 60), DEFAULT)


WORSE, SAME, BETTER = compared(-0.1), compared(0.0, 0.0), compared(0.05)
CHOSEN, SERVED = Weights(0.5, 0.4), Weights(0.35, 0.5)


@pytest.mark.parametrize(("of_weights", "served"), [(SAME, SERVED), (WORSE, SERVED), (BETTER, CHOSEN)])
def test_default_is_served_unless_the_gain_is_significant(of_weights, served):
    verdict = WeightComparison(WORSE, of_weights, CHOSEN, SERVED)
    assert verdict.served == served
    lines = verdict.lines(Path("my file"))
    assert f"my file has {served}: rerank serve --config 'my file'" in lines
    assert (lines[-1] == "The gain is not significant: the weights of the default stay.") == (served == SERVED)


def test_first_stage_that_beats_the_default_is_named():
    lines = WeightComparison(BETTER, SAME, CHOSEN, SERVED).lines(Path("out"))
    assert any("serve the model identity" in line for line in lines)
