"""nDCG@10 of windows, compared with ir-measures."""

import ir_measures
import pytest
import torch
from ir_measures import nDCG
from rerank_training.trainer.ndcg import ndcg_at_10


def one(scores: list[float], relevance: list[float]) -> float:
    mask = torch.ones(1, len(scores), dtype=torch.bool)
    return ndcg_at_10(torch.tensor([scores]), torch.tensor([relevance]), mask).item()


def test_random_windows_have_the_ndcg_of_ir_measures():
    generator = torch.Generator().manual_seed(0)
    sizes = [2, 3, 9, 10, 11, 25]
    scores = torch.randn(len(sizes), 25, generator=generator)
    relevance = torch.randint(0, 4, (len(sizes), 25), generator=generator).float()
    relevance[:, 0] = 1  # ir-measures gives 0 to a window without a relevant passage
    mask = torch.arange(25)[None, :] < torch.tensor(sizes)[:, None]
    run, qrels = [], []
    for row, size in enumerate(sizes):  # ir-measures does not keep the order of equal scores
        order = scores[row, :size].argsort(descending=True).tolist()
        run += [ir_measures.ScoredDoc(f"{row}", str(place), float(-rank)) for rank, place in enumerate(order)]
        qrels += [ir_measures.Qrel(f"{row}", str(place), int(relevance[row, place])) for place in range(size)]
    expected = {metric.query_id: metric.value for metric in ir_measures.iter_calc([nDCG @ 10], qrels, run)}
    found = ndcg_at_10(scores, relevance, mask).tolist()
    assert found == pytest.approx([expected[f"{row}"] for row in range(len(sizes))], abs=1e-6)


def test_equal_scores_keep_the_order_of_the_passages():
    assert one([1.0] * 12, [3.0] + [0.0] * 11) == 1.0
    assert one([1.0] * 12, [0.0] * 11 + [3.0]) == 0.0


@pytest.mark.parametrize("value", [0.0, 2.0, -2.0])
def test_window_without_gains_has_ndcg_one(value):
    assert one([3.0, 1.0, 2.0], [value] * 3) == 1.0
