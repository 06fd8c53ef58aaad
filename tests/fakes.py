"""Fake rankers and passages for tests of the engine, the strategies and the service."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rerank.engine.strategies import Positions, Round, Strategy, Walk
from rerank.rankers.base import RankerInfo, rank_windows
from rerank.types import Passage, Prepared, Query, ScoreKind, Window, WindowRanking


class NumberRanker:
    """A perfect ranker: the score of a passage is the number in its text.

    Attributes:
        batches: the number of windows of each batch.
        encoded: all windows, in the order in which they were encoded.
        ranked: all windows, in the order in which they were ranked.
    """

    def __init__(self, max_window_size: int = 100) -> None:
        self.info = RankerInfo(
            "number", "number", "r1", "t1", max_window_size, ScoreKind.WINDOW_LOG_PROB, reads_together=True
        )
        self.batches: list[int] = []
        self.encoded: list[Window] = []
        self.ranked: list[Window] = []

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        return Prepared(query, tuple(passages))

    def encode(self, window: Window) -> Window:
        self.encoded.append(window)
        return replace(window, tokens=10 * len(window.passages))

    def read(self, pieces: Sequence[Window]) -> list[WindowRanking]:
        return self.rank(pieces)

    def ranking(self, window: Window, results: Sequence[WindowRanking]) -> WindowRanking:
        (ranking,) = results
        return ranking

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        self.batches.append(len(windows))
        self.ranked += windows
        return [WindowRanking(tuple(number_in(p.text) for p in encoded.passages)) for encoded in windows]


class HeldRanker(NumberRanker):
    """Blocks each batch after the first `free_batches` until `release` is set; `entered` is set when one is blocked."""

    def __init__(self, free_batches: int = 0) -> None:
        super().__init__()
        self._free_batches = free_batches
        self.entered = threading.Event()
        self.release = threading.Event()

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        if len(self.batches) >= self._free_batches:
            self.entered.set()
            assert self.release.wait(timeout=60), "nobody released the ranker"
        return super().rank(windows)


class RamblingRanker(NumberRanker):
    """Stands for a model that writes no identifier: all places of its orders are repaired, and nothing changes."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, kind="generation", score_kind=ScoreKind.RANK)

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        sizes = [len(window.passages) for window in windows]
        return [WindowRanking(tuple(-float(place) for place in range(n)), repairs=n) for n in sizes]


class BrokenRanker(NumberRanker):
    """Returns `answer(windows)` for every batch that holds a passage with the text "poison"."""

    def __init__(self, answer: Callable[[Sequence[Window]], list[WindowRanking]]) -> None:
        super().__init__()
        self._answer = answer

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        if any(passage.text == "poison" for encoded in windows for passage in encoded.passages):
            return self._answer(windows)
        return super().rank(windows)


def number_in(text: str) -> float:
    match = re.search(r"-?\d+(\.\d+)?", text)
    return float(match[0]) if match else 0.0


def numbered_passages(numbers: Sequence[float]) -> list[Passage]:
    """Passages d0, d1, … whose relevance is the number in their text."""
    return [Passage(f"d{position}", f"relevance {number}") for position, number in enumerate(numbers)]


def run_schedule(
    strategy: Strategy, scores_of: Callable[[Positions], Sequence[float]], n: int, given: Sequence[int] | None = None
) -> tuple[list[Round], list[int]]:
    """The rounds of a strategy and its final order, when `scores_of` scores each window; `given`: the first order."""
    rounds: list[Round] = []
    walk = Walk(strategy, given or range(n))
    while walk.round is not None:
        rounds.append(walk.round)
        walk.advance([WindowRanking(tuple(scores_of(window))) for window in walk.round.windows])
    return rounds, list(walk.order)


def check_overtaking(ranker: Any, long: list[Window], short: list[Window]) -> None:
    """Ranks the short windows in every layer of a batch of the long ones; no score may change."""
    alone = [rank_windows(ranker, windows) for windows in (long, short)]
    overtaking: list[list[WindowRanking]] = []

    def overtake() -> None:
        ranker.call_between_layers(lambda: None)
        overtaking.append(rank_windows(ranker, short))
        ranker.call_between_layers(overtake)

    ranker.call_between_layers(overtake)
    try:
        assert rank_windows(ranker, long) == alone[0]
    finally:
        ranker.call_between_layers(lambda: None)
    assert len(overtaking) >= 2
    assert all(rankings == alone[1] for rankings in overtaking)
