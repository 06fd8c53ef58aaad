"""Objective of the retriever: batches of distinct passages, scaled cosines, and in-batch negatives."""

from __future__ import annotations

import math

import pytest
import torch
from rerank_training.lists.training_list import TrainingList
from rerank_training.retriever.objective import RetrieverCollator, RetrieverObjective, in_batch_loss
from rerank_training.trainer.losses import kl
from torch import Tensor, nn

from rerank.models.encoder import Encoder
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
    batch = RetrieverCollator(encoder.copy_tokenizer(), 16)(LISTS)
    assert len(batch["input_ids"]) == 2 + 4
    assert batch["relevance"].tolist() == [[3, 1, 0, 0], [0, 2, 5, 1]]
    assert batch["mask"].tolist() == [[True, True, False, False], [False, True, True, True]]


def test_queries_precede_the_passages(encoder: Encoder) -> None:
    tokenizer = encoder.copy_tokenizer()
    texts = tokenizer.batch_decode(RetrieverCollator(tokenizer, 16)(LISTS)["input_ids"], skip_special_tokens=True)
    assert texts == ["first", "second query", "text a", "text b", "text c", "text d"]


def test_texts_are_cut(encoder: Encoder) -> None:
    lists = [TrainingList(Query("q"), (Passage("a", "word " * 99), Passage("b", "b")), (1, 0))]
    assert RetrieverCollator(encoder.copy_tokenizer(), 12)(lists)["input_ids"].shape == (3, 12)


def test_scores_are_scaled_cosines(encoder: Encoder) -> None:
    batch = RetrieverCollator(encoder.copy_tokenizer(), 16)(LISTS)
    scores = RetrieverObjective(kl, scale=10.0).scores(TwoAxes(), batch)
    expected = [[10 * math.cos((p - q) * math.pi / 6) for p in range(2, 6)] for q in range(2)]
    assert scores.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]


def test_loss_reads_a_lists_own_passages_only(encoder: Encoder) -> None:
    batch = RetrieverCollator(encoder.copy_tokenizer(), 16)(LISTS)
    objective = RetrieverObjective(kl, scale=10.0)
    expected = kl(objective.scores(TwoAxes(), batch), batch["relevance"], batch["mask"])
    assert objective.loss(TwoAxes(), batch).item() == pytest.approx(expected.item())


def test_in_batch_loss_is_added_with_its_weight(encoder: Encoder) -> None:
    batch = RetrieverCollator(encoder.copy_tokenizer(), 16)(LISTS)
    plain, with_negatives = (RetrieverObjective(kl, 10.0, weight) for weight in (0.0, 0.5))
    added = in_batch_loss(plain.scores(TwoAxes(), batch), batch["relevance"], batch["mask"])
    difference = with_negatives.loss(TwoAxes(), batch) - plain.loss(TwoAxes(), batch)
    assert difference.item() == pytest.approx(0.5 * added.item(), abs=1e-5)


def test_in_batch_loss_has_negatives_from_other_lists_only() -> None:
    """Two lists, {a, b} with b the best and {c}; a is not a negative of the first."""
    scores = torch.tensor([[9.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    relevance = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 7.0]])
    mask = torch.tensor([[True, True, False], [False, False, True]])
    first, second = math.log(1 + math.exp(-1)), math.log(3)
    assert in_batch_loss(scores, relevance, mask).item() == pytest.approx((first + second) / 2)


def test_in_batch_loss_of_one_list_is_zero() -> None:
    one = torch.tensor([[1.0, 2.0]])
    assert in_batch_loss(one, one, torch.tensor([[True, True]])).item() == 0.0


def test_best_passage_may_have_a_negative_relevance() -> None:
    """The padding has relevance 0, which must not count as the best."""
    scores = torch.zeros(1, 2)
    relevance, mask = torch.tensor([[-5.0, 0.0]]), torch.tensor([[True, False]])
    assert in_batch_loss(scores, relevance, mask).item() == pytest.approx(math.log(2))
