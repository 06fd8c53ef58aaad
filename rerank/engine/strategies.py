"""Schedules: which windows are ranked, in which order, and what the final order is.

A strategy is a generator. It yields a round (windows that may run at the same time; a window is a tuple of
candidate positions), is sent one WindowRanking per window, and returns the final order as positions, best
first. It knows no model, so it is tested with numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias

from rerank.errors import InvalidRequest
from rerank.types import StrategyKind, WindowRanking

Positions: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """Windows that may run at the same time, by the model of that name; empty: by the request's own."""

    windows: tuple[Positions, ...]
    model: str = ""
    #: If this round runs, its one window's order is the head of the answer, and no later round reads it.
    is_final: bool = False
    #: All positions, best first, as far as is known before the round; empty: the order of the first stage.
    order: Positions = ()

    def top_n(self, window: Positions, top_n: int) -> int:
        """How many first places of the window matter when the answer is cut to `top_n`; in both, 0 means all."""
        return top_n if self.is_final and top_n < len(window) else 0


Schedule: TypeAlias = Generator[Round, Sequence[WindowRanking], list[int]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule will take: windows in all, and rounds that have to wait for one another. Bounds, which are equal
    where nothing depends on the rankings."""

    min_windows: int
    max_windows: int
    min_rounds: int
    max_rounds: int

    @staticmethod
    def exactly(windows: int, rounds: int) -> Cost:
        return Cost(windows, windows, rounds, rounds)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.min_windows + other.min_windows,
            self.max_windows + other.max_windows,
            self.min_rounds + other.min_rounds,
            self.max_rounds + other.max_rounds,
        )


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

    kind: ClassVar[StrategyKind]

    @property
    def window_size(self) -> int:
        """The widest window that the model of the request will be asked for, in passages."""
        ...

    def schedule(self, n: int) -> Schedule:
        """The rounds for n candidates; the return value is a permutation of range(n), best first."""
        ...

    def cost(self, n: int) -> Cost:
        """What the schedule for n candidates will take."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Single:
    """One window over the first `window_size` candidates; the rest keep their order behind it."""

    window_size: int = 20
    kind: ClassVar[StrategyKind] = StrategyKind.SINGLE

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)

    def schedule(self, n: int) -> Schedule:
        if n == 0:
            return []
        window = tuple(range(min(n, self.window_size)))
        (ranking,) = yield Round((window,), is_final=True)
        return [*reordered(window, ranking), *range(len(window), n)]

    def cost(self, n: int) -> Cost:
        return Cost.exactly(min(n, 1), min(n, 1))

    def __str__(self) -> str:
        return f"single({self.window_size})"


@dataclass(frozen=True)
class Sliding:
    """Back to front in overlapping windows (Sun et al. 2023, RankGPT, section 3.2): the best of each window
    meet the candidates above them in the next.

    With `early_stop`, two windows in a row that change nothing end the walk: those above keep their order.
    """

    window_size: int = 20
    stride: int = 10
    early_stop: bool = False
    kind: ClassVar[StrategyKind] = StrategyKind.SLIDING

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
        unchanged = 0
        for start, end in spans(n, self.window_size, self.stride):
            window = tuple(order[start:end])
            (ranking,) = yield Round((window,), is_final=start == 0, order=tuple(order))
            order[start:end] = reordered(window, ranking)
            unchanged = unchanged + 1 if order[start:end] == list(window) else 0
            if self.early_stop and unchanged == 2:
                break
        return order

    def cost(self, n: int) -> Cost:
        windows = len(list(spans(n, self.window_size, self.stride)))
        fewest = min(windows, 2) if self.early_stop else windows
        return Cost(fewest, windows, fewest, windows)

    def __str__(self) -> str:
        return f"sliding({self.window_size}/{self.stride}{', early stop' if self.early_stop else ''})"


@dataclass(frozen=True)
class TopDown:
    """Top-down partitioning (Parry et al. 2024, arXiv 2405.14589): the middle one of the first window is the pivot;
    all other partitions are compared with it in one parallel round; those above it are ordered the same way again.

    With a perfect ranker the first window_size // 2 are right.
    """

    window_size: int = 20
    kind: ClassVar[StrategyKind] = StrategyKind.TOP_DOWN

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)

    def schedule(self, n: int) -> Schedule:
        open_, settled = list(range(n)), list[int]()
        cut = self.window_size // 2
        while len(open_) > self.window_size:
            head = tuple(open_[: self.window_size])
            (ranking,) = yield Round((head,), order=(*open_, *settled))
            order = reordered(head, ranking)
            above, pivot, below = order[: cut - 1], order[cut - 1], order[cut:]
            # The pivot is read first, so that a ranker without opinion leaves everything below it.
            windows = tuple((pivot, *part) for part in _parts(open_[self.window_size :], self.window_size - 1))
            rankings = yield Round(windows, order=(*order, *open_[self.window_size :], *settled))
            for window, ranking in zip(windows, rankings, strict=True):
                order = reordered(window, ranking)
                place = order.index(pivot)
                above += order[:place]
                below += order[place + 1 :]
            settled = [pivot, *below, *settled]
            if len(above) == cut - 1:
                return above + settled
            open_ = above
        if open_:
            window = tuple(open_)
            (ranking,) = yield Round((window,), is_final=True, order=(*open_, *settled))
            open_ = reordered(window, ranking)
        return open_ + settled

    def cost(self, n: int) -> Cost:
        if n <= self.window_size:
            return Cost.exactly(min(n, 1), min(n, 1))
        fewest = self._passes(n)
        windows, rounds = 0, 0
        while n > self.window_size:
            windows, rounds = windows + self._passes(n), rounds + 2
            n -= 1 + self.window_size - self.window_size // 2  # at worst all but the first half beat the pivot
        last = min(n, 1)
        return Cost(fewest, windows + last, 2, rounds + last)

    def _passes(self, n: int) -> int:
        """Windows of one comparison with a pivot: the first, and the rest beside the pivot."""
        return 1 - (self.window_size - n) // (self.window_size - 1)

    def __str__(self) -> str:
        return f"top-down({self.window_size})"


@dataclass(frozen=True)
class Tournament:
    """Rounds of parallel groups of which the better half goes on, until one window holds all that are left (after
    TourRank, Chen et al. 2024, arXiv 2406.11678, one tournament): a candidate's points are the rounds it survives.

    Groups are dealt like cards, so that neighbours of the first stage do not meet early. Equal points are ordered by
    the place in the group. With a perfect ranker the first window_size // 2 are right.
    """

    window_size: int = 20
    kind: ClassVar[StrategyKind] = StrategyKind.TOURNAMENT

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)

    def schedule(self, n: int) -> Schedule:
        alive, out = list(range(n)), list[int]()
        while len(alive) > self.window_size:
            groups = self._groups(alive)
            rankings = yield Round(groups, order=(*alive, *out))
            orders = [reordered(group, ranking) for group, ranking in zip(groups, rankings, strict=True)]
            by_place = [order[place] for place in range(len(orders[0])) for order in orders if place < len(order)]
            survivors = len(groups) * (self.window_size // 2)  # no group is smaller than half a window
            alive, out = by_place[:survivors], by_place[survivors:] + out
        if alive:
            window = tuple(alive)
            (ranking,) = yield Round((window,), is_final=True, order=(*alive, *out))
            alive = reordered(window, ranking)
        return alive + out

    def _groups(self, alive: list[int]) -> tuple[Positions, ...]:
        """As few groups as hold all, none wider than a window; their sizes differ by one at most."""
        count = -(-len(alive) // self.window_size)
        return tuple(tuple(alive[first::count]) for first in range(count))

    def cost(self, n: int) -> Cost:
        if n <= self.window_size:
            return Cost.exactly(min(n, 1), min(n, 1))
        groups = len(self._groups(list(range(n))))
        return Cost.exactly(groups, 1) + self.cost(groups * (self.window_size // 2))

    def __str__(self) -> str:
        return f"tournament({self.window_size})"


@dataclass(frozen=True)
class Cascade:
    """A cheap model orders all candidates by its own schedule; the model of the request orders the top window."""

    window_size: int
    preranker: str
    first: Strategy
    kind: ClassVar[StrategyKind] = StrategyKind.CASCADE

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)

    def schedule(self, n: int) -> Schedule:
        order = yield from self._by_first_model(n)
        window = tuple(order[: self.window_size])
        if window:
            (ranking,) = yield Round((window,), is_final=True, order=tuple(order))
            order[: len(window)] = reordered(window, ranking)
        return order

    def _by_first_model(self, n: int) -> Schedule:
        schedule = self.first.schedule(n)
        try:
            round_ = next(schedule)
            while True:
                round_ = schedule.send((yield replace(round_, model=self.preranker, is_final=False)))
        except StopIteration as finished:
            order: list[int] = finished.value
            return order

    def cost(self, n: int) -> Cost:
        return self.first.cost(n) + Cost.exactly(min(n, 1), min(n, 1))

    def __str__(self) -> str:
        return f"cascade({self.preranker}: {self.first} > {self.window_size})"


def reordered(window: Positions, ranking: WindowRanking) -> list[int]:
    """The window's positions, best first."""
    return [window[place] for place in ranking.permutation]


def _parts(positions: Sequence[int], size: int) -> list[Positions]:
    """Consecutive slices; the last one may be shorter."""
    return [tuple(positions[start : start + size]) for start in range(0, len(positions), size)]


def _check_window_size(window_size: int) -> None:
    if window_size < 2:
        raise InvalidRequest(
            "strategy.window_size",
            f"window_size {window_size} cannot order anything; use at least 2",
            {"window_size": str(window_size)},
        )
