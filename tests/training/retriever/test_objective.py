"""Objective of the retriever: batches of distinct passages, and scaled cosines."""

from __future__ import annotations

import math

import pytest
import torch
from rerank_training.lists.training_list import TrainingList
from rerank_training.retriever.encoder import RetrieverCollator, RetrieverObjective
from rerank_training.trainer.losses import kl
from torch import Tensor, nn

from rerank.models.encoder import Encoder
from rerank.models.encoder_loading import Prompts
from rerank.types import Passage, Query


def a_list(query: str, **relevance: float) -> TrainingList:
    return TrainingList(Query(query), tuple(Passage(d, f"text {d}") for d in relevance), tuple(relevance.values()))


LISTS = [a_list("first", a=3, b=1), a_list("second query", b=2, c=5, d=1)]


class TwoAxes(nn.Module):
    """Text number i gets the unit vector at i times 30 degrees."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        angles = torch.arange(len(input_ids)) * math.pi / 6
        return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_passage_of_two_lists_is_encoded_once(encoder: Encoder) -> None:
    batch = RetrieverCollator(encoder.copy_tokenizer(), 16, Prompts())(LISTS)
    assert len(batch["input_ids"]) == 2 + 4
    assert batch["relevance"].tolist() == [[3, 1, 0, 0], [0, 2, 5, 1]]
    assert batch["mask"].tolist() == [[True, True, False, False], [False, True, True, True]]


def test_loss_reads_a_lists_own_passages_only(encoder: Encoder) -> None:
    batch = RetrieverCollator(encoder.copy_tokenizer(), 16, Prompts())(LISTS)
    objective = RetrieverObjective(kl)
    expected = kl(objective.scores(TwoAxes(), batch), batch["relevance"], batch["mask"])
    assert objective.loss(TwoAxes(), batch).item() == pytest.approx(expected.item())
