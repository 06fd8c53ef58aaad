"""Orders of the candidates are permutations that repeat with their seed."""

from __future__ import annotations

import pytest
from rerank_eval.orders import ORIGINAL, UNORDERED, Order, parse_orders

from rerank.errors import ConfigError


def test_all_orders_are_parsed() -> None:
    orders = parse_orders("reversed, original,shuffled:3,unordered")  # the original one comes first
    assert [order.name for order in orders] == [
        *("original", "reversed", "shuffled-1", "shuffled-2", "shuffled-3"),
        "unordered",
    ]
    assert [order for order in orders if not order.is_ordered] == [UNORDERED]


@pytest.mark.parametrize("text", ["", "sorted", "unordered:2", "shuffled", "shuffled:0", "shuffled:-1", "original,"])
def test_other_orders_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not one of original, reversed, shuffled:COUNT, unordered"):
        parse_orders(text)

    with pytest.raises(ConfigError, match="occurs twice"):
        parse_orders("reversed,reversed")


@pytest.mark.parametrize("order", parse_orders("original,reversed,shuffled:2,unordered"), ids=lambda order: order.name)
@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_order_is_a_permutation_and_repeats(order: Order, n: int) -> None:
    positions = order.permutation(n, "q", seed=3)
    assert sorted(positions) == list(range(n))
    assert positions == order.permutation(n, "q", seed=3)
    if order.name in ("original", "reversed"):
        assert positions == list(range(n))[:: 1 if order == ORIGINAL else -1]


def test_shuffles_differ_by_number_query_and_seed() -> None:
    first, second = parse_orders("shuffled:2")
    permutations = [first.permutation(50, "q", 0), second.permutation(50, "q", 0), first.permutation(50, "r", 0)]
    permutations.append(first.permutation(50, "q", 1))
    assert len({tuple(positions) for positions in permutations}) == 4
