"""Agreement of two orders: neighbours and Kendall's tau, of equal, reversed, longer and single ones."""

from __future__ import annotations

import pytest

from scripts.bench.orders import kendall_tau, neighbours_alike


def test_neighbours_alike_are_those_in_the_same_order_wherever_they_are() -> None:
    assert neighbours_alike([0, 1, 2, 3], [1, 0, 2, 3]) == pytest.approx(2 / 3)
    assert neighbours_alike([0, 1, 2], [2, 1, 0]) == 0.0


def test_tau_counts_all_pairs() -> None:
    assert kendall_tau([0, 1, 2, 3], [1, 0, 2, 3]) == pytest.approx((5 - 1) / 6)
    assert kendall_tau(["a", "b", "c"], ["c", "b", "a"]) == pytest.approx(-1)


def test_other_order_may_have_more() -> None:
    assert neighbours_alike(["a", "b"], ["x", "a", "y", "b"]) == kendall_tau(["a", "b"], ["x", "a", "y", "b"]) == 1.0


@pytest.mark.parametrize("order", [[], ["a"]])
def test_order_without_pairs_agrees(order: list[str]) -> None:
    assert neighbours_alike(order, order) == kendall_tau(order, order) == 1.0
