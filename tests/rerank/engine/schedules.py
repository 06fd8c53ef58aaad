"""Strategies, numbers of candidates and scores for the tests of schedules."""

import random
from collections.abc import Callable, Sequence

import pytest

from rerank.engine.strategies import Positions, Single, Sliding, Strategy, TopDown

#: (window_size, stride): the default, the narrowest, no overlap, stride 1, nearly no overlap, wider than any n.
SHAPES = [(20, 10), (2, 1), (2, 2), (3, 2), (20, 20), (20, 7), (11, 1), (40, 39), (250, 10)]
SLIDING = [Sliding(size, stride) for size, stride in SHAPES]
SINGLE = [Single(size) for size in (2, 20, 200, 250)]
TOP_DOWN = [TopDown(size) for size in (2, 3, 10, 20, 250)]

each_strategy = pytest.mark.parametrize("strategy", [*SLIDING, *SINGLE, *TOP_DOWN], ids=str)


def boundary_sizes(strategy: Strategy) -> list[int]:
    """Numbers of candidates around each change of the number of windows, up to 200."""
    size = strategy.window_size
    step = strategy.stride if isinstance(strategy, Sliding) else size - 1  # top-down: passages other than the pivot
    around = {size, size + step, size + 2 * step, 2 * size, 3 * size}
    largest = 200 if size > 3 else 60  # narrow windows take n² rounds at worst
    sizes = {0, 1, 2, 3, 57, 100, 200} | {n + offset for n in around for offset in (-1, 0, 1)}
    return sorted(n for n in sizes if n <= largest)


def few_levels(n: int) -> list[float]:
    """Relevance with many ties."""
    return [float(level) for level in random.Random(n).choices(range(4), k=n)]


def all_different(n: int) -> list[float]:
    return [float(place) for place in random.Random(n).sample(range(n), k=n)]


def by(relevance: Sequence[float]) -> Callable[[Positions], list[float]]:
    """Scores a window as a perfect ranker would."""
    return lambda window: [relevance[position] for position in window]


def inconsistent(seed: int) -> Callable[[Positions], list[float]]:
    """Scores a window differently each time."""
    generator = random.Random(seed)
    return lambda window: [generator.random() for _ in window]
