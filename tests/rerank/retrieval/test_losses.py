"""Losses that feedback and training share: against slow loops, per list, and what they must not read."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rerank.retrieval.losses import ListLosses, average_ranks, kl_divergence, weighted_ranknet
from tests.slow_losses import SLOW_LOSSES, lists_of, one_list, random_batch, slow_ranks

SIZES = [20, 7, 3, 12]
LOSSES = {"weighted-ranknet": weighted_ranknet, "kl": kl_divergence}
each_loss = pytest.mark.parametrize("loss", [pytest.param(loss, id=name) for name, loss in LOSSES.items()])


@pytest.mark.parametrize("grades", [3, None], ids=["tied", "untied"])
@pytest.mark.parametrize("name", LOSSES)
def test_each_list_has_the_loss_of_the_slow_loop(name: str, grades: int | None) -> None:
    scores, relevance, mask = random_batch(SIZES, grades)
    expected = [SLOW_LOSSES[name](*values) for values in lists_of(scores, relevance, mask)]
    assert LOSSES[name](relevance, mask)(scores).tolist() == pytest.approx(expected, rel=1e-9)


@each_loss
def test_prepared_loss_can_be_evaluated_again(loss: Callable[[Tensor, Tensor], ListLosses]) -> None:
    scores, relevance, mask = random_batch(SIZES)
    prepared = loss(relevance, mask)
    prepared(scores + torch.randn(scores.shape))
    assert torch.equal(prepared(scores), loss(relevance, mask)(scores))


@each_loss
def test_gradient_is_that_of_the_value(loss: Callable[[Tensor, Tensor], ListLosses]) -> None:
    scores, relevance, mask = random_batch([6, 3, 1], grades=4)
    assert torch.autograd.gradcheck(loss(relevance, mask), scores.requires_grad_())


@each_loss
def test_scores_at_padding_are_not_read(loss: Callable[[Tensor, Tensor], ListLosses]) -> None:
    scores, relevance, mask = random_batch(SIZES)
    clean = loss(relevance, mask)(scores)
    scores = scores.masked_fill(~mask, math.nan).requires_grad_()
    dirty = loss(relevance, mask)(scores)
    (gradient,) = torch.autograd.grad(dirty.sum(), scores)
    torch.testing.assert_close(dirty, clean)
    assert not gradient[~mask].any()


@each_loss
def test_empty_list_has_loss_zero(loss: Callable[[Tensor, Tensor], ListLosses]) -> None:
    scores, relevance, mask = random_batch([4, 2])
    mask[1] = False
    assert loss(relevance, mask)(scores)[1] == 0


def test_list_of_tied_passages_has_no_pair() -> None:
    scores, relevance, mask = one_list([3, 1, 2], [5, 5, 5])
    assert weighted_ranknet(relevance, mask)(scores).item() == 0


def test_tied_passages_share_their_average_rank() -> None:
    _, relevance, mask = random_batch(SIZES, grades=3)
    for row, (_, values) in enumerate(lists_of(relevance, relevance, mask)):
        assert average_ranks(relevance, mask)[row, : len(values)].tolist() == slow_ranks(values)
