"""Inverse propensity weights."""

from __future__ import annotations

import pytest
import torch
from rerank_training.data import TrainingList
from rerank_training.losses import RANK_LOSSES, ranknet
from rerank_training.propensity import inversely_weighted, place_weights
from rerank_training.windows import HeldOutWindows

from rerank.types import Passage, Query


def windows_with_best_at(places: list[int], width: int = 4) -> HeldOutWindows:
    passages = tuple(Passage(str(place), "text") for place in range(width))
    lists = [
        TrainingList(Query("q"), passages, tuple(float(place == best) for place in range(width))) for best in places
    ]
    return HeldOutWindows(lists, width)


def weights_of(places: list[int], width: int = 4) -> list[float]:
    weights: list[float] = place_weights(windows_with_best_at(places, width), len(places), width).tolist()
    return weights


def test_weights_are_inverse_to_how_often_the_best_stands_there() -> None:
    first, second, third, fourth = weights_of([0] * 4 + [1] * 2 + [2] + [3])
    assert [second / first, third / first, fourth / first] == pytest.approx([2, 4, 4])


def test_mean_over_the_windows_is_one_also_where_weights_are_clipped() -> None:
    for places in ([0, 1, 2, 3], [0] * 5 + [1], [0] * 999 + [3]):
        weights = weights_of(places)
        assert sum(weights[place] for place in places) / len(places) == pytest.approx(1)


def test_rare_places_are_clipped() -> None:
    weights = weights_of([0] * 999 + [3])
    assert weights[3] / weights[0] == pytest.approx(10 / (1000 / 1998), rel=1e-3)
    assert weights[1] == weights[3], "a place that was never best weighs as the rarest may"


def test_even_places_weigh_one_and_change_no_loss() -> None:
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    relevance = torch.tensor([[3.0, 1, 0, 2], [0, 1, 2, 3], [1, 0, 0, 0], [0, 2, 1, 0], [0, 0, 3, 1]])
    mask = torch.ones(5, 4, dtype=torch.bool)
    mask[2, 2:] = False
    weights = torch.tensor(weights_of([0, 1, 2, 3]))
    for loss in RANK_LOSSES.values():
        torch.testing.assert_close(
            inversely_weighted(loss, weights)(scores, relevance, mask), loss(scores, relevance, mask)
        )


def test_each_list_counts_by_the_place_of_its_best() -> None:
    """The second list's largest number is padding, and of the third's equals the first counts."""
    scores = torch.tensor([[1.0, 2, 0], [0.0, 1, 5], [1.0, 3, 2]])
    relevance = torch.tensor([[2.0, 1, 0], [0.0, 1, 9], [0.0, 1, 1]])
    mask = torch.tensor([[True] * 3, [True, True, False], [True] * 3])
    weights = torch.tensor([0.5, 2.0, 7.0])
    alone = [ranknet(scores[i : i + 1], relevance[i : i + 1], mask[i : i + 1]) for i in range(3)]
    expected = (0.5 * alone[0] + 2 * alone[1] + 2 * alone[2]) / 3
    torch.testing.assert_close(inversely_weighted(ranknet, weights)(scores, relevance, mask), expected)
