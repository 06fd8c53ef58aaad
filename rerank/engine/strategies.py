"""Strategies: each divides a list of candidates into windows and merges the windows' rankings into a final order.

A schedule is a generator. It yields rounds (windows that may run concurrently; a window is a tuple of candidate
positions), is sent one WindowRanking per window, and returns the final order as positions, best first. It does not
depend on a model, so it can be tested with numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias

from rerank.errors import InvalidRequest
from rerank.types import StrategyKind, WindowRanking

Positions: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """Windows that may run concurrently on one model: the named one, or the request's own if the name is empty."""

    windows: tuple[Positions, ...]
    model: str = ""
    #: True if the order of the round's one window is the head of the final order, and no later round reads it.
    is_final: bool = False
    #: All positions in the best order known before the round; empty: the order of the first stage.
    order: Positions = ()
    #: The weight of the first stage in the order of the round's one window; see `rerank.engine.interpolation`.
    interpolation: float = 0.0

    def top_n(self, window: Positions, top_n: int) -> int:
        """The number of best passages of the window whose order an answer of length `top_n` needs; 0: all."""
        return top_n if self.is_final and top_n < len(window) else 0


Schedule: TypeAlias = Generator[Round, Sequence[WindowRanking], list[int]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Bounds on the number of windows of a schedule, and of rounds, which run one after the other.

    The bounds are equal for schedules that do not depend on the rankings.
    """

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
    """Half-open [start, end) spans of sliding windows over n positions, from the back to the front; none if n is 0.

    The last span is [0, min(size, n)), so that the top of the list is always read in a full window. (If n - size is
    not a multiple of the stride, RankLLM's last window is narrower; otherwise the two agree.)
    """
    end = n
    while end > size:
        yield end - size, end
        end -= stride
    if n > 0:
        yield 0, min(size, n)


class Strategy(Protocol):
    """Divides a list of candidates into windows."""

    @property
    def kind(self) -> StrategyKind: ...

    @property
    def window_size(self) -> int:
        """The largest window for the request's own model, in passages."""
        ...

    def schedule(self, n: int) -> Schedule:
        """Yields the rounds for n candidates; returns a permutation of range(n), best first."""
        ...

    def cost(self, n: int) -> Cost:
        """The bounds on windows and rounds of the schedule for n candidates."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Single:
    """Orders the first `window_size` candidates in one window; the others keep their order after them."""

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
    """Overlapping windows from the back of the list to the front (Sun et al. 2023, RankGPT, section 3.2).

    The best passages of each window move on into the next one. With `early_stop`, the schedule ends after two windows
    in a row that change nothing; the candidates before them keep their order.
    """

    window_size: int = 20
    stride: int = 10
    early_stop: bool = False
    kind: ClassVar[StrategyKind] = StrategyKind.SLIDING

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)
        if not 1 <= self.stride <= self.window_size:
            raise _invalid_stride(self.stride, self.window_size)

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
    """Top-down partitioning (Parry et al. 2024, arXiv 2405.14589) around a pivot, the middle of the first window.

    All other candidates are compared with the pivot in one round of concurrent windows; those ranked above it are
    ordered in the same way again. With a perfect ranker, the first window_size // 2 positions are correct.
    """

    window_size: int = 20
    kind: ClassVar[StrategyKind] = StrategyKind.TOP_DOWN

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)

    def schedule(self, n: int) -> Schedule:
        candidates, tail = list(range(n)), list[int]()
        half = self.window_size // 2
        while len(candidates) > self.window_size:
            head = tuple(candidates[: self.window_size])
            (ranking,) = yield Round((head,), order=(*candidates, *tail))
            order = reordered(head, ranking)
            above, pivot, below = order[: half - 1], order[half - 1], order[half:]
            # The pivot is read first, so that a ranker that keeps the order leaves everything below it.
            windows = tuple((pivot, *part) for part in _parts(candidates[self.window_size :], self.window_size - 1))
            rankings = yield Round(windows, order=(*order, *candidates[self.window_size :], *tail))
            for window, ranking in zip(windows, rankings, strict=True):
                order = reordered(window, ranking)
                place = order.index(pivot)
                above += order[:place]
                below += order[place + 1 :]
            tail = [pivot, *below, *tail]
            if len(above) == half - 1:
                return above + tail
            candidates = above
        if candidates:
            window = tuple(candidates)
            (ranking,) = yield Round((window,), is_final=True, order=(*candidates, *tail))
            candidates = reordered(window, ranking)
        return candidates + tail

    def cost(self, n: int) -> Cost:
        if n <= self.window_size:
            return Cost.exactly(min(n, 1), min(n, 1))
        fewest = self._windows_per_pass(n)
        windows, rounds = 0, 0
        while n > self.window_size:
            windows, rounds = windows + self._windows_per_pass(n), rounds + 2
            n -= 1 + self.window_size - self.window_size // 2  # at worst all but the first half beat the pivot
        last = min(n, 1)
        return Cost(fewest, windows + last, 2, rounds + last)

    def _windows_per_pass(self, n: int) -> int:
        """The first window of n candidates, and those that compare the others with its pivot."""
        return 1 - (self.window_size - n) // (self.window_size - 1)

    def __str__(self) -> str:
        return f"top-down({self.window_size})"


@dataclass(frozen=True)
class Tournament:
    """Rounds of concurrent groups whose better half advances, until one window holds all remaining candidates.

    One tournament of TourRank (Chen et al. 2024, arXiv 2406.11678): a candidate scores one point per round it survives,
    and candidates with equal points are ordered by their place in the group. Candidates are dealt to the groups in
    turn, so that neighbours of the first stage do not meet early. With a perfect ranker, the first window_size // 2
    positions are correct.
    """

    window_size: int = 20
    kind: ClassVar[StrategyKind] = StrategyKind.TOURNAMENT

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)

    def schedule(self, n: int) -> Schedule:
        candidates, eliminated = list(range(n)), list[int]()
        while len(candidates) > self.window_size:
            groups = self._groups(candidates)
            rankings = yield Round(groups, order=(*candidates, *eliminated))
            orders = [reordered(group, ranking) for group, ranking in zip(groups, rankings, strict=True)]
            by_place = [order[place] for place in range(len(orders[0])) for order in orders if place < len(order)]
            survivors = len(groups) * (self.window_size // 2)  # no group is smaller than half a window
            candidates, eliminated = by_place[:survivors], by_place[survivors:] + eliminated
        if candidates:
            window = tuple(candidates)
            (ranking,) = yield Round((window,), is_final=True, order=(*candidates, *eliminated))
            candidates = reordered(window, ranking)
        return candidates + eliminated

    def _groups(self, candidates: list[int]) -> tuple[Positions, ...]:
        """Deals the candidates in turn to as few groups as possible, none larger than a window."""
        count = -(-len(candidates) // self.window_size)
        return tuple(tuple(candidates[number::count]) for number in range(count))

    def cost(self, n: int) -> Cost:
        if n <= self.window_size:
            return Cost.exactly(min(n, 1), min(n, 1))
        groups = len(self._groups(list(range(n))))
        return Cost.exactly(groups, 1) + self.cost(groups * (self.window_size // 2))

    def __str__(self) -> str:
        return f"tournament({self.window_size})"


@dataclass(frozen=True)
class Cascade:
    """A preranker orders all candidates by its own strategy; then the request's model orders the top window."""

    window_size: int
    preranker: str
    preranker_strategy: Strategy
    kind: ClassVar[StrategyKind] = StrategyKind.CASCADE

    def __post_init__(self) -> None:
        _check_window_size(self.window_size)

    def schedule(self, n: int) -> Schedule:
        order = yield from _with_rounds(
            self.preranker_strategy.schedule(n),
            lambda round_: replace(round_, model=self.preranker, is_final=False),
        )
        window = tuple(order[: self.window_size])
        if window:
            (ranking,) = yield Round((window,), is_final=True, order=tuple(order))
            order[: len(window)] = reordered(window, ranking)
        return order

    def cost(self, n: int) -> Cost:
        return self.preranker_strategy.cost(n) + Cost.exactly(min(n, 1), min(n, 1))

    def __str__(self) -> str:
        return f"cascade({self.preranker}: {self.preranker_strategy} > {self.window_size})"


@dataclass(frozen=True)
class Interpolated:
    """A strategy whose order is interpolated with the first stage, if one window holds all passages that are ranked.

    Args:
        strategy: any other one. Of a cascade, the last window is interpolated with the preranker.
        first_stage: the weight of the first stage, above 0.
        required: a list that needs several windows is refused, instead of ranked without interpolation.
    """

    strategy: Strategy
    first_stage: float
    required: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.first_stage < math.inf:
            raise InvalidRequest(
                "strategy.interpolation",
                f"weight {self.first_stage} of the first stage is not between 0 and infinity; use one from 0 to 100",
                {"first_stage": str(self.first_stage)},
            )

    @property
    def kind(self) -> StrategyKind:
        return self.strategy.kind

    @property
    def window_size(self) -> int:
        return self.strategy.window_size

    def schedule(self, n: int) -> Schedule:
        """Raises: InvalidRequest if interpolation is required and n candidates need several windows."""
        if not (problem := self.problem(n)):
            return _with_rounds(self.strategy.schedule(n), self._mark_final)
        if self.required:
            raise InvalidRequest(
                "strategy.interpolation",
                f"{problem}; use the strategy single, a window_size of {n}, at most {self.window_size} candidates, or "
                "interpolation 0",
                {"candidates": str(n), "window_size": str(self.window_size)},
            )
        return self.strategy.schedule(n)

    def problem(self, n: int) -> str:
        """The reason that forbids interpolating the order of n candidates; empty if nothing does."""
        windows = self.strategy.cost(n).max_windows
        if windows <= 1 or isinstance(self.strategy, Cascade):
            return ""
        return f"{self.strategy} reads {n} candidates in up to {windows} windows, whose scores cannot be compared"

    def _mark_final(self, round_: Round) -> Round:
        return replace(round_, interpolation=self.first_stage) if round_.is_final else round_

    def cost(self, n: int) -> Cost:
        return self.strategy.cost(n)

    def __str__(self) -> str:
        return f"{self.strategy} + {self.first_stage:g} first stage"


def _with_rounds(schedule: Schedule, change: Callable[[Round], Round]) -> Schedule:
    """The schedule with each round changed by `change`."""
    try:
        round_ = next(schedule)
        while True:
            round_ = schedule.send((yield change(round_)))
    except StopIteration as finished:
        order: list[int] = finished.value
        return order


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
            f"window_size {window_size} is too small to order passages; use at least 2",
            {"window_size": str(window_size)},
        )


def _invalid_stride(stride: int, window_size: int) -> InvalidRequest:
    return InvalidRequest(
        "strategy.stride",
        f"stride {stride} is outside 1..window_size; use at most {window_size}",
        {"stride": str(stride), "window_size": str(window_size)},
    )
