"""nDCG@10 of windows against ir-measures."""

from __future__ import annotations

import ir_measures
import pytest
import torch
from ir_measures import nDCG
from rerank_training.ndcg import ndcg_at_10


def published(scores: list[float], relevance: list[float]) -> float:
    """By ir-measures, whose scores are made distinct first: it does not keep the order of equal ones."""
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    run = [ir_measures.ScoredDoc("q", str(place), float(-rank)) for rank, place in enumerate(order)]
    qrels = [ir_measures.Qrel("q", str(place), int(value)) for place, value in enumerate(relevance)]
    return float(ir_measures.calc_aggregate([nDCG @ 10], qrels, run)[nDCG @ 10])


def one(scores: list[float], relevance: list[float]) -> float:
    mask = torch.ones(1, len(scores), dtype=torch.bool)
    return ndcg_at_10(torch.tensor([scores]), torch.tensor([relevance]), mask).item()


def test_random_windows_measure_as_published() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [2, 3, 9, 10, 11, 25]
    scores = torch.randn(len(sizes), 25, generator=generator)
    relevance = torch.randint(0, 4, (len(sizes), 25), generator=generator).float()
    relevance[:, 0] = 1  # a window without a relevant passage measures 0 there
    mask = torch.arange(25)[None, :] < torch.tensor(sizes)[:, None]
    found = ndcg_at_10(scores, relevance, mask).tolist()
    expected = [published(scores[i, :n].tolist(), relevance[i, :n].tolist()) for i, n in enumerate(sizes)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_what_stands_behind_short_windows_does_not_matter() -> None:
    mask = torch.tensor([[True, True, False]])
    for score, relevance in ((99.0, 99.0), (-99.0, -99.0)):
        padded = ndcg_at_10(torch.tensor([[1.0, 2.0, score]]), torch.tensor([[1.0, 0.0, relevance]]), mask)
        assert padded.item() == pytest.approx(one([1.0, 2.0], [1.0, 0.0]))


def test_equal_scores_keep_the_order_of_the_passages() -> None:
    assert one([1.0] * 12, [3.0] + [0.0] * 11) == 1.0
    assert one([1.0] * 12, [0.0] * 11 + [3.0]) == 0.0


def test_negative_scores_of_a_teacher_gain_from_the_lowest() -> None:
    assert one([1.0, 3.0, 2.0], [-5.0, -2.0, -4.0]) == 1.0
    assert one([1.0, 2.0, 3.0], [-5.0, -2.0, -4.0]) == pytest.approx(one([1.0, 2.0, 3.0], [0.0, 3.0, 1.0]))


@pytest.mark.parametrize("value", [0.0, 2.0, -2.0])
def test_window_that_no_order_can_be_wrong_about_has_one(value: float) -> None:
    assert one([3.0, 1.0, 2.0], [value] * 3) == 1.0
