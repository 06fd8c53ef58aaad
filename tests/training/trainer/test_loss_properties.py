"""Properties that every ranking loss has: gradients, padding, ties, extreme scores, and types."""

from __future__ import annotations

import math

import pytest
import torch
from rerank_training.trainer.losses import RANK_LOSSES, RankLoss

from tests.slow_losses import random_batch

PAIRWISE = {"ranknet", "weighted-ranknet", "lambdarank"}
each_loss = pytest.mark.parametrize("loss", [pytest.param(loss, id=name) for name, loss in RANK_LOSSES.items()])
each_pairwise = pytest.mark.parametrize("loss", [pytest.param(RANK_LOSSES[name], id=name) for name in sorted(PAIRWISE)])


@each_loss
def test_gradient_is_that_of_the_value(loss: RankLoss) -> None:
    scores, relevance, mask = random_batch([6, 3, 1], grades=4)
    assert torch.autograd.gradcheck(lambda s: loss(s, relevance, mask), scores.requires_grad_())


@each_loss
def test_padding_is_not_read(loss: RankLoss) -> None:
    """Neither its value nor its gradient nor its position."""
    scores, relevance, mask = random_batch([5, 3])
    columns = [5, 0, 1, 6, 2, 3, 4, 7]  # the first 5 of 8 are the passages
    scores_padded, relevance_padded, mask_padded = (
        torch.cat([part, torch.full((2, 3), filler)], dim=1)[:, columns]
        for part, filler in ((scores, math.nan), (relevance, math.inf), (mask, False))
    )
    scores.requires_grad_()
    scores_padded.requires_grad_()
    value, value_padded = loss(scores, relevance, mask), loss(scores_padded, relevance_padded, mask_padded)
    (gradient,) = torch.autograd.grad(value, scores)
    (gradient_padded,) = torch.autograd.grad(value_padded, scores_padded)
    torch.testing.assert_close(value_padded, value)
    torch.testing.assert_close(gradient_padded[:, [1, 2, 4, 5, 6]], gradient)
    assert not gradient_padded[~mask_padded].any()


@each_loss
@pytest.mark.parametrize(
    ("lists", "passages", "present"),
    [(0, 4, True), (2, 0, True), (2, 1, True), (2, 4, False)],
    ids=["no lists", "no passages", "one passage", "all padding"],
)
def test_no_contributing_list_gives_a_zero_with_a_gradient(
    loss: RankLoss, lists: int, passages: int, present: bool
) -> None:
    """Without nan in the graph."""
    scores = torch.randn(lists, passages, requires_grad=True)
    value = loss(scores, torch.ones(lists, passages), torch.full((lists, passages), present))
    with torch.autograd.set_detect_anomaly(True):
        value.backward()
    assert value.item() == 0
    assert scores.grad is not None
    assert not scores.grad.any()


@each_loss
def test_list_of_one_passage_does_not_count_in_the_mean(loss: RankLoss) -> None:
    scores, relevance, mask = random_batch([4, 1], grades=4)
    torch.testing.assert_close(loss(scores, relevance, mask), loss(scores[:1], relevance[:1], mask[:1]))


@each_pairwise
def test_all_tied_gives_a_zero_with_a_gradient(loss: RankLoss) -> None:
    scores = torch.randn(2, 4, requires_grad=True)
    value = loss(scores, torch.ones(2, 4), torch.ones(2, 4, dtype=torch.bool))
    value.backward()
    assert value.item() == 0
    assert scores.grad is not None
    assert not scores.grad.any()


@each_loss
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_extreme_scores_stay_finite(loss: RankLoss, scale: float) -> None:
    scores = (scale * torch.tensor([[1.0, 0.5, -1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])).requires_grad_()
    relevance = torch.tensor([[3.0, 2.0, 1.0, 0.0], [1e4, 0.0, -1e4, 1.0]])
    value = loss(scores, relevance, torch.tensor([[True] * 4, [True] * 3 + [False]]))
    value.backward()
    assert value.isfinite()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@each_loss
def test_bfloat16_scores_are_computed_in_float32(loss: RankLoss) -> None:
    scores, relevance, mask = random_batch([20, 7])
    rounded = scores.bfloat16().requires_grad_()
    value = loss(rounded, relevance, mask)
    value.backward()
    assert value.dtype == torch.float32
    assert rounded.grad is not None
    assert rounded.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value, loss(rounded.detach().float(), relevance, mask))


@each_loss
def test_no_gradient_flows_into_the_relevance(loss: RankLoss) -> None:
    """FIRST's targets are the model's own scores; the loss must not fall because the target changes."""
    scores, relevance, mask = random_batch([6, 4])
    relevance.requires_grad_()
    loss(scores.requires_grad_(), relevance, mask).backward()
    assert relevance.grad is None


@each_pairwise
def test_pair_of_equal_scores_has_a_loss(loss: RankLoss) -> None:
    scores = torch.tensor([[7.01, 7.0]]).bfloat16()  # equal after rounding
    assert scores[0, 0] == scores[0, 1]
    assert loss(scores, torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool)) > 0


@each_loss
def test_shapes_that_would_broadcast_are_refused(loss: RankLoss) -> None:
    scores, relevance, mask = random_batch([4, 4])
    with pytest.raises(ValueError, match=r"\(2, 1(, 1)?\).*bug"):
        loss(scores, relevance[:, :1], mask)
    with pytest.raises(ValueError, match=r"\(1,( 4,)? 4\).*bug"):
        loss(scores, relevance, mask[:1])
