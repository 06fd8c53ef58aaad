"""Signals of judged lists: their scores equal serving's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rerank_training.fusion.weights import SignalList, served_scores, signals_of
from rerank_training.lists.training_list import TrainingList
from rich.console import Console

from rerank.config import FusionModel
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import rank_windows
from rerank.rankers.fusion import FusionRanker
from rerank.types import FirstStageKind, FirstStageWeight, Window
from tests.training.pe_rank.pe_lists import training_lists

SCORES = (0.5, 2.0, 1.0, -3.0, 0.25)
ITEM = replace(training_lists(3)[1], scores=SCORES)


def of_list(item: TrainingList, encoder: Encoder, sparse_encoder: SparseEncoder) -> SignalList:
    (found,) = signals_of([item], encoder, sparse_encoder, Console(quiet=True))
    return found


@pytest.mark.parametrize("depth", [3, 0])
@pytest.mark.parametrize("weight", [0.25, *FirstStageKind])
def test_scores_are_those_of_serving(
    encoder: Encoder, sparse_encoder: SparseEncoder, depth: int, weight: FirstStageWeight
) -> None:
    settings = FusionModel(name="fusion", ranker="fusion", cosine_depth=depth)
    ranker = FusionRanker(settings, encoder, sparse_encoder)
    ready = ranker.prepare(ITEM.query, ITEM.passages)
    window = Window(ready.query, ready.passages, first_stage=SCORES, weight=weight)
    (ranking,) = rank_windows(ranker, [window])
    found = served_scores(of_list(ITEM, encoder, sparse_encoder), settings, weight)
    # in bfloat16, a vector depends on the batch of its text
    np.testing.assert_allclose(found, ranking.scores, rtol=0.02, atol=0.05)
    assert np.isnan(ranking.cosines).sum() == (5 - depth if depth else 0)


def test_list_without_scores_counts_by_reciprocal_ranks(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    signals = of_list(replace(ITEM, scores=()), encoder, sparse_encoder).signals
    assert signals.cheap.first_stage.tolist() == pytest.approx([1 / (60 + rank) for rank in range(1, 6)])


def test_passages_keep_the_vectors_that_they_have(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    vector = np.eye(encoder.id.dimension, dtype=np.float32)[0]
    first, *others = ITEM.passages
    item = replace(ITEM, passages=(replace(first, vector=vector), *others))
    vectors = of_list(item, encoder, sparse_encoder).signals.vectors
    assert vectors[0].tolist() == vector.tolist()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-3)
