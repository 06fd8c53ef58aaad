"""Orders of the candidates are permutations that repeat with their seed."""

from __future__ import annotations

import pytest
from rerank_eval.orders import ORIGINAL, Order, parse_orders


@pytest.mark.parametrize("order", parse_orders("original,reversed,shuffled:2,unordered"), ids=lambda order: order.name)
@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_order_is_a_permutation_and_repeats(order: Order, n: int) -> None:
    positions = order.permutation(n, "q", seed=3)
    assert sorted(positions) == list(range(n))
    assert positions == order.permutation(n, "q", seed=3)
    if order.name in ("original", "reversed"):
        assert positions == list(range(n))[:: 1 if order == ORIGINAL else -1]
