"""Fake rankers and passages for tests of the engine, the strategies and the service."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rerank.engine.strategies import Positions, Round, Strategy
from rerank.rankers.base import Ranker, RankerInfo, rank_windows
from rerank.types import Passage, PreparedTexts, Query, ScoreKind, Window, WindowRanking


class NumberRanker(Ranker):
    """A perfect ranker: the score of a passage is the number in its text, unless an argument says otherwise.

    Args:
        scores_of: the scores of a window, or its ranking.
        instead: called with the name and the arguments of `prepare`, `encode` and `score` before each of them. What
            it returns is the result, unless it is None.
        free_batches: batches that run at once. Each later one sets `entered`, and waits until `release` is set.
        info: fields of `info`.

    Attributes:
        prepared: the query and the doc_ids of each call of `prepare`.
        batches: the number of windows of each batch.
        encoded: all windows, in the order of their encoding.
        ranked: all windows, in the order of their ranking.
    """

    def __init__(
        self,
        max_window_size: int = 100,
        scores_of: Callable[[Window], Sequence[float] | WindowRanking] | None = None,
        instead: Callable[..., Any] = lambda method, *arguments: None,
        free_batches: float = math.inf,
        **info: Any,
    ) -> None:
        self._scores_of = scores_of or (lambda window: [number_in(passage.text) for passage in window.passages])
        self._instead, self._free_batches = instead, free_batches
        self.entered, self.release = threading.Event(), threading.Event()
        self.info = RankerInfo(
            "number", "number", "r1", "t1", max_window_size, ScoreKind.WINDOW_LOG_PROB, supports_batching=True
        )
        self.info = replace(self.info, **info)
        self.prepared: list[tuple[str, list[str]]] = []
        self.batches: list[int] = []
        self.encoded: list[Window] = []
        self.ranked: list[Window] = []

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        self.prepared.append((query.text, [passage.doc_id for passage in passages]))
        return self._instead("prepare", query, passages) or PreparedTexts(query, tuple(passages))

    def encode(self, window: Window) -> Window:
        encoded = self._instead("encode", window) or replace(window, tokens=10 * len(window.passages))
        self.encoded.append(window)
        return encoded

    def score(self, parts: Sequence[Any]) -> Sequence[WindowRanking | None]:
        if (answer := self._instead("score", parts)) is not None:
            return answer
        if len(self.batches) >= self._free_batches:
            self.block()
        self.batches.append(len(parts))
        self.ranked += parts
        found = [self._scores_of(window) for window in parts]
        return [scores if isinstance(scores, WindowRanking) else WindowRanking(tuple(scores)) for scores in found]

    def block(self) -> None:
        self.entered.set()
        assert self.release.wait(timeout=60), "nobody released the ranker"


def rambling_ranker() -> NumberRanker:
    """Acts as a model that writes no identifier: all places of its orders are repaired, and nothing changes."""

    def unchanged(window: Window) -> WindowRanking:
        n = len(window.passages)
        return WindowRanking(tuple(-float(place) for place in range(n)), repairs=n)

    return NumberRanker(scores_of=unchanged, kind="generation", score_kind=ScoreKind.RANK)


def number_in(text: str) -> float:
    match = re.search(r"-?\d+(\.\d+)?", text)
    return float(match[0]) if match else 0.0


def numbered_passages(numbers: Sequence[float]) -> list[Passage]:
    """Passages d0, d1, … whose relevance is the number in their text."""
    return [Passage(f"d{position}", f"relevance {number}") for position, number in enumerate(numbers)]


def window_of(query: str | Query, passages: Iterable[str | Passage], **fields: Any) -> Window:
    """A window of passages, or of texts, which become the passages d0, d1, …; `fields` as in Window."""
    given = (Passage(f"d{number}", one) if isinstance(one, str) else one for number, one in enumerate(passages))
    return Window(Query(query) if isinstance(query, str) else query, tuple(given), **fields)


def prepared_window(ranker: Any, query: str | Query, passages: Iterable[str | Passage], **fields: Any) -> Window:
    """The window that a ranker or a renderer of prompts prepares."""
    raw = window_of(query, passages)
    ready = ranker.prepare(raw.query, raw.passages)
    return Window(ready.query, ready.passages, **fields)


def ranking_of(ranker: Ranker, query: str | Query, passages: Iterable[str | Passage], **fields: Any) -> WindowRanking:
    """The ranking of a window that the ranker prepares."""
    return rank_windows(ranker, [prepared_window(ranker, query, passages, **fields)])[0]


def run_schedule(
    strategy: Strategy, scores_of: Callable[[Positions], Sequence[float]], n: int, given: Sequence[int] | None = None
) -> tuple[list[Round], list[int]]:
    """The rounds of a strategy and its final order, when `scores_of` scores each window; `given`: the first order."""
    return drive_schedule(
        strategy,
        lambda round_: [WindowRanking(tuple(scores_of(window))) for window in round_.windows],
        given or range(n),
    )


def drive_schedule(
    strategy: Strategy, rank: Callable[[Round], list[WindowRanking]], given: Sequence[int]
) -> tuple[list[Round], list[int]]:
    """The rounds of a strategy and its final order, when `rank` ranks the windows of each round."""
    rounds: list[Round] = []
    schedule = strategy.schedule(given)
    rankings: list[WindowRanking] | None = None
    while True:
        try:
            rounds.append(next(schedule) if rankings is None else schedule.send(rankings))
        except StopIteration as end:
            return rounds, list(end.value)
        rankings = rank(rounds[-1])


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
