"""The candidates in other orders than the first stage's: what remains of a result is the system's own.

A listwise ranker that does nothing scores as well as its input is ordered; reversed and shuffled input take that away.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rerank.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Order:
    """`original`, `reversed`, or `shuffled-N`, the N-th shuffle, another one for every query."""

    name: str

    def permutation(self, n: int, query_id: str, seed: int = 0) -> list[int]:
        """Positions in the first stage's order, in the order in which the system gets them."""
        positions = list(range(n))
        if self.name == "reversed":
            positions.reverse()
        elif self.name != "original":
            random.Random(f"{seed} {self.name} {query_id}").shuffle(positions)
        return positions

    def label(self, system: str) -> str:
        """The name of a system that gets this order."""
        return system if self.name == "original" else f"{system}.{self.name}"


ORIGINAL, REVERSED = Order("original"), Order("reversed")


def parse_orders(text: str) -> tuple[Order, ...]:
    """`original,reversed,shuffled:3`, of which each part may be left out; `original` comes first in any case.

    Raises:
        ConfigError: a part is none of these, comes twice, or there is none.
    """
    orders = [order for part in text.split(",") for order in _parse(part.strip())]
    if len(set(orders)) != len(orders):
        raise ConfigError(f"--orders {text}: an order comes twice")
    return tuple(sorted(orders, key=lambda order: order != ORIGINAL))


def _parse(part: str) -> list[Order]:
    if part in ("original", "reversed"):
        return [Order(part)]
    kind, _, count = part.partition(":")
    if kind != "shuffled" or not count.isdecimal() or int(count) == 0:
        raise ConfigError(f"--orders: {part!r} is none of original, reversed, shuffled:COUNT")
    return [Order(f"shuffled-{number}") for number in range(1, int(count) + 1)]
