"""Orders in which systems receive the candidates: the first stage's, reversed, shuffled, or none.

A listwise ranker that changes nothing scores as well as its input is ordered; reversed and shuffled candidates remove
that advantage. Without an order, they are sent as an unordered list, whose order a system does not read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rerank.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the candidates: `original`, `reversed`, `shuffled-N`, or `unordered`, which is a shuffle as well.

    Each shuffle differs from query to query.
    """

    name: str

    @property
    def is_ordered(self) -> bool:
        """True if the candidates are sent as an ordered list."""
        return self != UNORDERED

    def permutation(self, n: int, query_id: str, seed: int = 0) -> list[int]:
        """Positions in the first stage's order of n candidates, in the order in which the system receives them."""
        positions = list(range(n))
        if self.name == "reversed":
            positions.reverse()
        elif self.name != "original":
            random.Random(f"{seed} {self.name} {query_id}").shuffle(positions)
        return positions

    def label(self, system: str) -> str:
        """The name of a system that receives this order."""
        return system if self.name == "original" else f"{system}.{self.name}"


#: The first stage's order.
ORIGINAL = Order("original")
#: No order: the candidates are sent with `ordered` false.
UNORDERED = Order("unordered")


def parse_orders(text: str) -> tuple[Order, ...]:
    """The orders of a list such as `original,shuffled:3,unordered`; `original`, if named, comes first.

    Raises:
        ConfigError: a part is not one of these, or occurs twice.
    """
    orders = [order for part in text.split(",") for order in _parse(part.strip())]
    if len(set(orders)) != len(orders):
        raise ConfigError(f"--orders {text}: an order occurs twice; name each once")
    return tuple(sorted(orders, key=lambda order: order != ORIGINAL))


def _parse(part: str) -> list[Order]:
    if part in ("original", "reversed", "unordered"):
        return [Order(part)]
    kind, _, count = part.partition(":")
    if kind != "shuffled" or not count.isdecimal() or int(count) == 0:
        raise ConfigError(f"--orders: {part!r} is not one of original, reversed, shuffled:COUNT, unordered")
    return [Order(f"shuffled-{number}") for number in range(1, int(count) + 1)]
