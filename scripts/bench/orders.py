"""Agreement of two orders of the same things."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TypeVar

from scipy.stats import kendalltau

T = TypeVar("T", bound=Hashable)


def neighbours_alike(order: Sequence[T], other: Sequence[T]) -> float:
    """The share of neighbouring pairs of an order that another one, which may have more, orders alike."""
    places = _places(order, other)
    return fmean(a < b for a, b in pairwise(places)) if len(order) > 1 else 1.0


def kendall_tau(order: Sequence[T], other: Sequence[T]) -> float:
    """Kendall's tau of what is in an order between it and another one, which may have more."""
    return float(kendalltau(range(len(order)), _places(order, other)).statistic) if len(order) > 1 else 1.0


def _places(order: Sequence[T], other: Sequence[T]) -> list[int]:
    """The place in the other order of each thing of an order."""
    place = {each: index for index, each in enumerate(other)}
    return [place[each] for each in order]
