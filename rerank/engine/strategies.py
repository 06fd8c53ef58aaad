"""Strategies divide a list of candidates into windows, and merge the rankings of the windows into a final order.

A schedule is a generator. It yields rounds, is sent a WindowRanking for each window of the round, and returns the final
order as positions, best first. A round has windows that may run concurrently; a window is a tuple of candidates'
positions. A schedule does not depend on a model, so it can be tested with numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from rerank.errors import InvalidRequest
from rerank.types import FirstStageKind, FirstStageWeight, StrategyKind, WindowRanking

Positions: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """Windows that do not depend on one another and may run concurrently.

    Attributes:
        is_final: whether the round has one window, whose order is the start of the final order.
        order: all positions in the best order that is known before the round; empty for the order at the start.
    """

    windows: tuple[Positions, ...]
    is_final: bool = False
    order: Positions = ()


Schedule: TypeAlias = Generator[Round, Sequence[WindowRanking], list[int]]


class Cost(NamedTuple):
    """Bounds on the number of windows of a schedule; equal if it does not depend on the rankings."""

    min_windows: int
    max_windows: int


def spans(n: int, size: int, stride: int) -> Iterator[tuple[int, int]]:
    """Spans [start, end) of sliding windows over n positions, from the back to the front; none if n is 0.

    The last span is [0, min(size, n)), so that the top of the list is always read in a full window. The last window of
    RankLLM is narrower if n - size is not a multiple of the stride; otherwise its windows are equal.
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
    def window_size(self) -> int:
        """Largest number of passages in a window."""
        ...

    def schedule(self, candidates: Sequence[int]) -> Schedule:
        """Yields the rounds for candidates in this order, and returns all candidates, best first."""
        ...

    def cost(self, n: int) -> Cost:
        """Bounds on the number of windows of the schedule for n candidates."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class _Windowed:
    """A strategy with one window size, the largest number of passages in a window."""

    window_size: int = 20

    def __post_init__(self) -> None:
        if self.window_size < 2:
            raise _out_of_range("window_size", self.window_size, "is too small to order passages; use at least 2")


@dataclass(frozen=True)
class Single(_Windowed):
    """Orders the first `window_size` candidates in one window; the others keep their order after them."""

    def schedule(self, candidates: Sequence[int]) -> Schedule:
        return _last_window(candidates[: self.window_size], candidates[self.window_size :])

    def cost(self, n: int) -> Cost:
        return Cost(min(n, 1), min(n, 1))

    def __str__(self) -> str:
        return f"single({self.window_size})"


@dataclass(frozen=True)
class Sliding(_Windowed):
    """Overlapping windows from the back of the list to the front (Sun et al. 2023, RankGPT, section 3.2).

    The best passages of each window are in the next one, too.
    """

    stride: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.stride <= self.window_size:
            problem = f"is outside 1..window_size; use at most {self.window_size}"
            raise _out_of_range("stride", self.stride, problem, window_size=self.window_size)

    def schedule(self, candidates: Sequence[int]) -> Schedule:
        order = list(candidates)
        for start, end in spans(len(order), self.window_size, self.stride):
            window = tuple(order[start:end])
            (ranking,) = yield Round((window,), is_final=start == 0, order=tuple(order))
            order[start:end] = reordered(window, ranking)
        return order

    def cost(self, n: int) -> Cost:
        windows = len(list(spans(n, self.window_size, self.stride)))
        return Cost(windows, windows)

    def __str__(self) -> str:
        return f"sliding({self.window_size}/{self.stride})"


@dataclass(frozen=True)
class TopDown(_Windowed):
    """Top-down partitioning (Parry et al. 2024, arXiv 2405.14589) around a pivot, the middle of the first window.

    All other candidates are compared with the pivot in one round of concurrent windows. Candidates above the pivot are
    ordered in the same way again. With a perfect ranker, the first window_size // 2 positions are correct.
    """

    def schedule(self, candidates: Sequence[int]) -> Schedule:
        above, tail = list(candidates), list[int]()
        half = self.window_size // 2
        while len(above) > self.window_size:
            head, others = tuple(above[: self.window_size]), above[self.window_size :]
            (ranking,) = yield Round((head,), order=(*above, *tail))
            order = reordered(head, ranking)
            above, pivot, below = order[: half - 1], order[half - 1], order[half:]
            # The pivot is first in each window, so that a ranker that keeps the order puts no candidate above it.
            windows = tuple((pivot, *part) for part in _parts(others, self.window_size - 1))
            rankings = yield Round(windows, order=(*order, *others, *tail))
            for window, ranking in zip(windows, rankings, strict=True):
                order = reordered(window, ranking)
                index = order.index(pivot)
                above += order[:index]
                below += order[index + 1 :]
            tail = [pivot, *below, *tail]
            if len(above) == half - 1:
                return above + tail
        return (yield from _last_window(above, tail))

    def cost(self, n: int) -> Cost:
        if n <= self.window_size:
            return Cost(min(n, 1), min(n, 1))
        fewest, windows = self._windows_per_pass(n), 0
        while n > self.window_size:
            windows += self._windows_per_pass(n)
            n -= 1 + self.window_size - self.window_size // 2  # at worst, all others are above the pivot
        return Cost(fewest, windows + min(n, 1))

    def _windows_per_pass(self, n: int) -> int:
        """Number of windows in a pass over n candidates: the first one, and one for each window_size - 1 others."""
        return 1 - (self.window_size - n) // (self.window_size - 1)

    def __str__(self) -> str:
        return f"top-down({self.window_size})"


def strategy_of(kind: StrategyKind, window_size: int, stride: int) -> Strategy:
    """The strategy of a kind. The last stage of a cascade reads the preranker's best passages in one window."""
    match kind:
        case StrategyKind.SINGLE | StrategyKind.CASCADE:
            return Single(window_size)
        case StrategyKind.SLIDING:
            return Sliding(window_size, stride)
        case StrategyKind.TOP_DOWN:
            return TopDown(window_size)


def has_stride(strategy: Strategy) -> bool:
    """True if windows of the strategy overlap by a stride."""
    return isinstance(strategy, Sliding)


@dataclass(frozen=True)
class RankStage:
    """A model that orders all candidates by a strategy. A request has one stage, or up to three: a cascade.

    In a cascade, the preranker orders all candidates by its default strategy, which may be a cascade of two stages;
    then the request's model orders the top window, which is the strategy Single.

    Attributes:
        model: name of the model.
        weight: weight with which scores of the first stage, or of the preranker, are added to the scores of the stage,
            see `rerank.engine.scores`; 0 for none; for a kind, the model computes the weight from the list.
        has_scores: whether the model scores passages, so that other scores can be added.
    """

    model: str
    strategy: Strategy
    weight: FirstStageWeight = 0.0
    has_scores: bool = True

    def warning(self, n: int) -> str:
        """The warning that the weight has no effect on the order of n candidates; empty if it has, or is 0."""
        if not self.weight:
            return ""
        left_out, windows = f"{_as_text(self.weight)} is left out", self.strategy.cost(n).max_windows
        if not self.has_scores:
            return f"first_stage_weight {left_out}: {self.model} gives an order without scores"
        if windows <= 1:
            return ""
        return (
            f"first_stage_weight {left_out}: {self.strategy} reads {n} candidates in up to {windows} windows, whose "
            f"scores cannot be compared; use the strategy single, or at most {self.strategy.window_size} candidates"
        )


#: The stages of a request in the order in which they run; the last one has the request's own model.
Stages: TypeAlias = tuple[RankStage, ...]


def describe(stages: Stages) -> str:
    """Describes the strategies of a request's stages, as traces and `ListModels` report them."""
    *prerankers, last = stages
    text = str(last.strategy)
    if prerankers:
        text = f"cascade({prerankers[-1].model}: {describe(tuple(prerankers))} > {last.strategy.window_size})"
    return f"{text} + {_as_text(last.weight)} first stage" if last.weight else text


def _as_text(weight: FirstStageWeight) -> str:
    return str(weight) if isinstance(weight, FirstStageKind) else f"{weight:g}"


def reordered(window: Positions, ranking: WindowRanking) -> list[int]:
    """The positions of a window by its ranking, best first."""
    return list(map(window.__getitem__, ranking.permutation))


def _last_window(candidates: Sequence[int], others: Sequence[int]) -> Schedule:
    """Orders the candidates in one window; the others keep their order after them."""
    if not candidates:
        return list(others)
    window = tuple(candidates)
    (ranking,) = yield Round((window,), is_final=True, order=(*candidates, *others))
    return [*reordered(window, ranking), *others]


def _parts(positions: Sequence[int], size: int) -> list[Positions]:
    """Consecutive slices; the last one may be shorter."""
    return [tuple(positions[start : start + size]) for start in range(0, len(positions), size)]


def _out_of_range(setting: str, value: int, problem: str, **others: int) -> InvalidRequest:
    metadata = {name: str(number) for name, number in {setting: value, **others}.items()}
    return InvalidRequest(f"strategy.{setting}", f"{setting} {value} {problem}", metadata)
