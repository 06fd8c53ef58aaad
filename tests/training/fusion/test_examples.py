"""Training examples of a fusion: they are what serving computes, and windows hold the best passages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rerank_training.fusion.examples import ExampleSampling, FusionObjective, SignalList, SignalLists, collate
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import VectorTable, texts_of
from rerank_training.trainer.losses import rank_loss_named
from rich.console import Console

from rerank.config import FusionModel
from rerank.models.encoder import Encoder
from rerank.models.fusion_correction import CorrectionConfig, FusionCorrection, LoadedCorrection
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import rank_windows
from rerank.rankers.fusion import FusionRanker
from rerank.types import Precision, Window
from tests.training.pe_rank.pe_lists import training_lists

SCORES = (0.5, 2.0, 1.0, -3.0, 0.25)


def settings(depth: int) -> FusionModel:
    return FusionModel(name="fusion", ranker="fusion", cosine_depth=depth)


@pytest.fixture(scope="module")
def item() -> TrainingList:
    return replace(training_lists(3)[1], scores=SCORES)


def vector_tables(
    encoder: Encoder, item: TrainingList, dtype: Precision = "float32"
) -> tuple[VectorTable, VectorTable]:
    console, encode = Console(quiet=True), partial(encoder.encode_passages, dtype=dtype)
    return (
        VectorTable(encoder.encode_queries, texts_of([[item]], "queries"), console),
        VectorTable(encode, texts_of([[item]], "passages"), console),
    )


@pytest.fixture(scope="module")
def of_list(item: TrainingList, encoder: Encoder, sparse_encoder: SparseEncoder) -> SignalList:
    console = Console(quiet=True)
    tables = vector_tables(encoder, item, "auto")
    return SignalLists([item], *tables, sparse_encoder, console)[0]


@pytest.fixture(scope="module")
def trained(encoder: Encoder, sparse_encoder: SparseEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = FusionCorrection(
        CorrectionConfig(
            encoder_name=encoder.id.name,
            encoder_sha256=encoder.id.sha256,
            sparse_encoder_sha256=sparse_encoder.id.sha256,
            dimension=encoder.id.dimension,
        )
    )
    torch.nn.init.normal_(network.out.weight)
    folder = tmp_path_factory.mktemp("correction")
    network.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("depth", [3, 0])
def test_scores_are_those_of_serving(
    item: TrainingList,
    of_list: SignalList,
    trained: Path,
    encoder: Encoder,
    sparse_encoder: SparseEncoder,
    depth: int,
) -> None:
    correction = LoadedCorrection(trained, encoder.id.sha256, sparse_encoder.id.sha256)
    ranker = FusionRanker(settings(depth), encoder, sparse_encoder, correction)
    ready = ranker.prepare(item.query, item.passages)
    window = Window(ready.query, ready.passages, first_stage=SCORES, first_stage_weight=0.25)
    (ranking,) = rank_windows(ranker, [window])
    read = ~np.isnan(ranking.signals["cosine"])
    example = ExampleSampling(settings(depth), 0.25, 0.0).as_served(of_list)
    batch = collate([example])
    scores = FusionObjective(rank_loss_named("softmax")).scores(correction._network, batch)[0].numpy()
    served = np.array(ranking.scores)
    order = np.argsort(-served, kind="stable")
    by_relevance = np.array(item.relevance)
    # in bfloat16, a vector depends on the batch of its text
    np.testing.assert_allclose(np.sort(scores[: read.sum()]), np.sort(served[read]), rtol=0.02, atol=0.05)
    assert by_relevance[order].tolist() == example.relevance[np.argsort(-scores, kind="stable")].tolist()
    assert not np.allclose(example.fused[: read.sum()], scores[: read.sum()], atol=0.1)  # it is corrected


def test_untrained_network_keeps_the_order_of_the_fusion(of_list: SignalList, encoder: Encoder) -> None:
    example = ExampleSampling(settings(0), 0.25, 0.0).as_served(of_list)
    config = CorrectionConfig(
        encoder_name="", encoder_sha256="", sparse_encoder_sha256="", dimension=encoder.id.dimension
    )
    batch = collate([example])
    scores = FusionObjective(rank_loss_named("softmax")).scores(FusionCorrection(config), batch)
    assert scores[0].tolist() == example.fused.tolist()


def test_window_holds_the_best_passages_as_many_as_the_depth_or_more(of_list: SignalList) -> None:
    sampling = ExampleSampling(settings(3), 0.25, 0.0)
    by_size = {len(window.relevance): window for window in (sampling(of_list, str(seed)) for seed in range(40))}
    assert sorted(by_size) == [3, 4, 5]
    whole = sampling.as_served(of_list)
    np.testing.assert_array_equal(by_size[3].fused, whole.fused[:3])
    assert sorted(by_size[5].relevance.tolist()) == sorted(whole.relevance.tolist()) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_passages_that_are_not_read_follow_all_others(of_list: SignalList) -> None:
    example = ExampleSampling(settings(2), 0.25, 0.0).as_served(of_list)
    assert len(example.relevance) == 5
    assert not example.vectors[2:].any()
    assert (np.diff(example.fused[2:]) < 0).all()
    assert example.fused[:2].min() > example.fused[2:].max() + 1000


def test_share_of_the_windows_has_no_first_stage(of_list: SignalList) -> None:
    windows = [ExampleSampling(settings(0), 0.25, 0.5)(of_list, str(seed)) for seed in range(60)]
    unscored = [not window.beside_others[:, 0].any() for window in windows]
    assert 15 < sum(unscored) < 45


def test_list_without_scores_counts_by_reciprocal_ranks(
    item: TrainingList, encoder: Encoder, sparse_encoder: SparseEncoder
) -> None:
    console = Console(quiet=True)
    tables = vector_tables(encoder, item)
    (of_list,) = SignalLists([replace(item, scores=())], *tables, sparse_encoder, console)[:]
    assert of_list.signals.cheap.first_stage.tolist() == pytest.approx([1 / (60 + rank) for rank in range(1, 6)])
