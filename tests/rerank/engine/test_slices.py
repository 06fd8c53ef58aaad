"""A window of several parts has the scores of the whole, and requests take turns between two parts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.model import slices
from rerank.engine.strategies import Single
from rerank.types import Passage, ScoreKind, Window, WindowRanking
from tests.fakes import NumberRanker, number_in
from tests.rerank.engine.harness import (
    best_first,
    positions,
    request_for,
    shuffled,
    start,
    wait_for,
    wait_until_blocked,
)

SINGLE = Single(1000)


@dataclass(frozen=True)
class Part:
    """Some passages of a window, of 100 tokens each. All parts of the window share `scores`."""

    window: Window
    places: range
    scores: dict[int, float]

    @property
    def tokens(self) -> int:
        return 100 * len(self.places)


class Pointwise(NumberRanker):
    """Scores each passage alone, five in a part."""

    def __init__(self, free_batches: int = 1_000_000) -> None:
        super().__init__(free_batches=free_batches)
        self.info = replace(self.info, score_kind=ScoreKind.POINTWISE, max_window_size=1000)
        self.parts: list[Part] = []

    def encode(self, window: Window) -> Window:
        n, scores = len(window.passages), dict[int, float]()
        parts = tuple(Part(window, range(start, min(start + 5, n)), scores) for start in range(0, n, 5))
        return replace(super().encode(window), parts=parts)

    def score(self, parts: Sequence[Any]) -> list[WindowRanking | None]:
        super().score([])  # blocks
        self.parts += parts
        return [self._score(part) for part in parts]

    def _score(self, part: Part) -> WindowRanking | None:
        passages = part.window.passages
        part.scores.update((place, number_in(passages[place].text)) for place in part.places)
        is_whole = len(part.scores) == len(passages)
        return WindowRanking(tuple(part.scores[place] for place in range(len(passages)))) if is_whole else None


def small_batches(ranker: NumberRanker) -> Engine:
    return Engine({"number": ranker}, EngineConfig(max_batch_tokens=500))


@pytest.mark.parametrize("n", [1, 2, 7, 100, 333])
async def test_window_of_several_parts_is_ordered_as_a_whole(n):
    numbers, ranker = shuffled(n), Pointwise()
    async with small_batches(ranker) as engine:
        ranking = await engine.run(request_for(numbers, SINGLE))
    assert positions(ranking) == best_first(numbers)
    assert [item.score for item in ranking.ranked] == sorted(numbers, reverse=True)
    (window,) = ranking.trace.windows
    assert (window.scores, ranking.trace.rounds, len(ranker.parts)) == (tuple(numbers), 1, -(-n // 5))


async def test_parts_of_several_requests_share_a_batch():
    ranker = Pointwise(free_batches=0)
    async with small_batches(ranker) as engine:
        (first,) = start(engine.run(request_for([1, 2], SINGLE)))
        await wait_until_blocked(ranker)
        runs = start(*(engine.run(request_for([1, 2], SINGLE, query=str(number))) for number in range(2)))
        await wait_for(lambda: engine.waiting_windows == 2)
        ranker.release.set()
        await asyncio.gather(first, *runs)
    assert len(ranker.batches) == 2


async def test_short_request_overtakes_between_two_parts():
    ranker = Pointwise(free_batches=1)
    async with small_batches(ranker) as engine:
        (long,) = start(engine.run(request_for(shuffled(500), SINGLE, query="long")))
        await wait_until_blocked(ranker)
        (short,) = start(engine.run(request_for([1, 2], SINGLE, query="short")))
        await wait_for(lambda: engine.queued_requests == 2 and "short" in {w.query.text for w in ranker.encoded})
        ranker.release.set()
        await asyncio.gather(short, long)
    assert [part.window.query.text for part in ranker.parts].index("short") < 5


def texts_of(*texts: str) -> list[Passage]:
    return [Passage(str(number), text) for number, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("passages", "expected"),
    [
        (texts_of("xxxx", "x", "xxx", "xx", ""), [[4, 1, 3], [2], [0]]),  # by length
        (texts_of("x" * 9, "y" * 9), [[0], [1]]),  # only one text may exceed the limit
        (texts_of("aaa", "bb", "aaa", "c", "bb"), [[3], [1, 4], [0, 2]]),  # so that equal texts have equal vectors
        ([], []),
    ],
)
def test_slices_hold_every_passage_once_and_equal_texts_together(passages, expected):
    assert slices(passages, [len(passage.text) for passage in passages], 4) == expected
