"""Losses that feedback and training share: against slow loops, per list, and what they must not read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from rerank.retrieval.losses import ListLosses, kl_divergence, weighted_ranknet
from tests.slow_losses import SLOW_LOSSES, lists_of, random_batch

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
def test_empty_list_has_loss_zero(loss: Callable[[Tensor, Tensor], ListLosses]) -> None:
    scores, relevance, mask = random_batch([4, 2])
    mask[1] = False
    assert loss(relevance, mask)(scores)[1] == 0
