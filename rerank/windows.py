"""Schedules: which windows are ranked, in which order, and what the final order is.

A strategy is a generator. It yields a round (windows that may run at the same time; a window is a tuple of
candidate positions), is sent one WindowRanking per window, and returns the final order as positions, best
first. It knows no model, so it is tested with numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from rerank.errors import InvalidRequest
from rerank.types import WindowRanking

Positions: TypeAlias = tuple[int, ...]
Round: TypeAlias = list[Positions]
Schedule: TypeAlias = Generator[Round, Sequence[WindowRanking], list[int]]


def spans(n: int, size: int, stride: int) -> Iterator[tuple[int, int]]:
    """Half-open [start, end) spans over n positions, from the back to the front; none when n is 0.

    The last span is [0, min(size, n)), so that the top of the list is always read in a full window. (Where
    n - size is no multiple of the stride, RankLLM's walk ends in a narrower window; otherwise the two agree.)
    """
    end = n
    while end > size:
        yield end - size, end
        end -= stride
    if n > 0:
        yield 0, min(size, n)


class Strategy(Protocol):
    """How a list of candidates is cut into windows."""

    name: ClassVar[str]

    @property
    def window_size(self) -> int:
        """The widest window that will be asked for, in passages."""
        ...

    def schedule(self, n: int) -> Schedule:
        """The rounds for n candidates; the return value is a permutation of range(n), best first."""
        ...

    def unread(self, n: int) -> int:
        """How many of n candidates no window reads; they keep their order behind the others."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Single:
    """One window over the first `window_size` candidates; the rest keep their order behind it."""

    window_size: int = 20
    name: ClassVar[str] = "single"

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)

    def schedule(self, n: int) -> Schedule:
        if n == 0:
            return []
        window = tuple(range(min(n, self.window_size)))
        (ranking,) = yield [window]
        return [*reordered(window, ranking), *range(len(window), n)]

    def unread(self, n: int) -> int:
        return max(0, n - self.window_size)

    def __str__(self) -> str:
        return f"single({self.window_size})"


@dataclass(frozen=True)
class Sliding:
    """Back to front in overlapping windows (Sun et al. 2023, RankGPT, section 3.2): the best of each window
    meet the candidates above them in the next."""

    window_size: int = 20
    stride: int = 10
    name: ClassVar[str] = "sliding"

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)
        if not 1 <= self.stride <= self.window_size:
            raise InvalidRequest(
                "strategy.stride",
                f"stride {self.stride} is outside 1..window_size; use at most {self.window_size}",
                {"stride": str(self.stride), "window_size": str(self.window_size)},
            )

    def schedule(self, n: int) -> Schedule:
        order = list(range(n))
        for start, end in spans(n, self.window_size, self.stride):
            window = tuple(order[start:end])
            (ranking,) = yield [window]
            order[start:end] = reordered(window, ranking)
        return order

    def unread(self, n: int) -> int:
        return 0

    def __str__(self) -> str:
        return f"sliding({self.window_size}/{self.stride})"


def reordered(window: Positions, ranking: WindowRanking) -> list[int]:
    """The window's positions, best first."""
    return [window[place] for place in ranking.permutation]


def _check_window_size(window_size: int) -> None:
    if window_size < 2:
        raise InvalidRequest(
            "strategy.window_size",
            f"window_size {window_size} cannot order anything; use at least 2",
            {"window_size": str(window_size)},
        )
