"""Inverse propensity weighting by the position of the best passage."""

from __future__ import annotations

import pytest
import torch
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.windows import HeldOutWindows
from rerank_training.trainer.losses import RANK_LOSSES, ranknet
from rerank_training.trainer.position_bias import inverse_propensity_loss, position_weights

from rerank.types import Passage, Query


def windows_with_best_at(positions: list[int], width: int = 4) -> HeldOutWindows:
    passages = tuple(Passage(str(position), "text") for position in range(width))
    lists = [
        TrainingList(Query("q"), passages, tuple(float(position == best) for position in range(width)))
        for best in positions
    ]
    return HeldOutWindows(lists, width)


def weights_of(positions: list[int], width: int = 4) -> list[float]:
    weights: list[float] = position_weights(windows_with_best_at(positions, width), len(positions), width).tolist()
    return weights


def test_weights_are_inverse_to_the_frequency_of_the_best_position() -> None:
    first, second, third, fourth = weights_of([0] * 4 + [1] * 2 + [2] + [3])
    assert [second / first, third / first, fourth / first] == pytest.approx([2, 4, 4])


def test_mean_weight_is_one_even_with_clipping() -> None:
    for positions in ([0, 1, 2, 3], [0] * 5 + [1], [0] * 999 + [3]):
        weights = weights_of(positions)
        assert sum(weights[position] for position in positions) / len(positions) == pytest.approx(1)


def test_weights_of_rare_positions_are_clipped() -> None:
    weights = weights_of([0] * 999 + [3])
    assert weights[3] / weights[0] == pytest.approx(10 / (1000 / 1998), rel=1e-3)
    assert weights[1] == weights[3], "a position that never has the best passage has the largest weight"


def test_uniform_positions_change_no_loss() -> None:
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    relevance = torch.tensor([[3.0, 1, 0, 2], [0, 1, 2, 3], [1, 0, 0, 0], [0, 2, 1, 0], [0, 0, 3, 1]])
    mask = torch.ones(5, 4, dtype=torch.bool)
    mask[2, 2:] = False
    weights = torch.tensor(weights_of([0, 1, 2, 3]))
    for loss in RANK_LOSSES.values():
        torch.testing.assert_close(
            inverse_propensity_loss(loss, weights)(scores, relevance, mask), loss(scores, relevance, mask)
        )


def test_each_list_is_weighted_by_the_position_of_its_best_passage() -> None:
    """The second list's largest relevance is padding; in the third list the first of two ties counts."""
    scores = torch.tensor([[1.0, 2, 0], [0.0, 1, 5], [1.0, 3, 2]])
    relevance = torch.tensor([[2.0, 1, 0], [0.0, 1, 9], [0.0, 1, 1]])
    mask = torch.tensor([[True] * 3, [True, True, False], [True] * 3])
    weights = torch.tensor([0.5, 2.0, 7.0])
    alone = [ranknet(scores[i : i + 1], relevance[i : i + 1], mask[i : i + 1]) for i in range(3)]
    expected = (0.5 * alone[0] + 2 * alone[1] + 2 * alone[2]) / 3
    torch.testing.assert_close(inverse_propensity_loss(ranknet, weights)(scores, relevance, mask), expected)
