"""Slices: what is read in slices has the scores of the whole, and requests take turns between two slices."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.estimate import expected_work
from rerank.engine.job import Completed, Job, ModelStage, Stage
from rerank.engine.slices import joined, sliced, slices
from rerank.engine.strategies import Single
from rerank.errors import DeadlineExceeded
from rerank.types import EncodedWindow, Passage, Query, ScoreKind, Window, WindowRanking
from tests.fakes import HeldRanker, NumberRanker, number_in, numbered_passages
from tests.rerank.engine.harness import (
    best_first,
    now_s,
    positions,
    queries,
    request_for,
    shuffled,
    start,
    wait_for,
    wait_until_blocked,
)

SINGLE = Single(1000)


class Pointwise(HeldRanker):
    """Scores each passage alone, and counts 100 tokens for each."""

    def __init__(self, free_batches: int = 1_000_000) -> None:
        super().__init__(free_batches)
        self.info = replace(self.info, score_kind=ScoreKind.POINTWISE, max_window_size=1000)

    def encode(self, window: Window) -> EncodedWindow:
        return replace(super().encode(window), tokens=100 * len(window.passages), truncated=(0,))

    @property
    def sizes(self) -> list[int]:
        return [len(window.passages) for window in self.ranked]


def small_batches(ranker: NumberRanker) -> Engine:
    return Engine({"number": ranker}, EngineConfig(max_batch_tokens=500))


@pytest.mark.parametrize("n", [1, 2, 7, 100, 333])
async def test_window_read_in_slices_is_ordered_as_a_whole(n: int) -> None:
    numbers, ranker = shuffled(n), Pointwise()
    async with small_batches(ranker) as engine:
        for _ in range(2):  # the second time with a measured number of tokens
            ranking = await engine.run(request_for(numbers, SINGLE))
    assert positions(ranking) == best_first(numbers)
    assert [item.score for item in ranking.ranked] == sorted(numbers, reverse=True)
    (window,) = ranking.trace.windows
    assert (window.scores, window.tokens, ranking.trace.rounds) == (tuple(numbers), 100 * n, 1)
    assert sum(ranker.sizes) == 2 * n
    assert max(ranker.sizes[len(ranker.sizes) // 2 + 1 :], default=1) <= 40


async def test_listwise_window_is_never_sliced() -> None:
    ranker = NumberRanker()
    async with small_batches(ranker) as engine:
        await engine.run(request_for(shuffled(80), Single(100)))
    assert [len(window.passages) for window in ranker.ranked] == [80]


async def test_cancelled_request_reads_no_further_slice() -> None:
    ranker = Pointwise(free_batches=2)
    async with small_batches(ranker) as engine:
        (run,) = start(engine.run(request_for(shuffled(500), SINGLE)))
        await wait_until_blocked(ranker)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        ranker.release.set()
    assert 0 < sum(ranker.sizes) < 500


async def test_deadline_ends_a_request_between_its_slices() -> None:
    ranker = Pointwise(free_batches=1)
    async with small_batches(ranker) as engine:
        request = request_for(shuffled(500), SINGLE, deadline_s=now_s() + 0.05)
        with pytest.raises(DeadlineExceeded):
            await engine.run(request)
        ranker.release.set()
    assert sum(ranker.sizes) < 500


async def test_short_request_overtakes_between_two_slices() -> None:
    ranker = Pointwise(free_batches=1)
    async with small_batches(ranker) as engine:
        (long,) = start(engine.run(request_for(shuffled(500), SINGLE, query="long")))
        await wait_until_blocked(ranker)
        (short,) = start(engine.run(request_for([1, 2], SINGLE, query="short")))
        await wait_for(lambda: engine.queued_requests == 2 and "short" in {w.query.text for w in ranker.encoded})
        ranker.release.set()
        await asyncio.gather(short, long)
    assert queries(ranker).index("short") < len(queries(ranker)) - 1


async def test_work_that_remains_counts_slices_as_shares_of_the_window() -> None:
    ranker, rank = Pointwise(free_batches=0), ModelStage(Stage.RANK, "number")
    job = Job()
    job.expect(expected_work(request_for(shuffled(1000), SINGLE), {"number": ranker.info}, lambda _: 1.0))
    job.add_windows("number", [1000] * 4, [1 / 16] * 4)
    assert job.remaining[rank] == 16_000  # the 4,000 of these slices, and three times as many


def test_slices_have_passages_of_like_lengths_and_all_of_them() -> None:
    passages = tuple(Passage(str(place), "x" * (1 + 37 * place % 50)) for place in range(40))
    window_slices = sliced(Window(Query("q"), passages), lambda passage: len(passage.text), 100)
    assert sorted(place for window_slice in window_slices for place in window_slice.places) == list(range(40))
    assert sum(window_slice.share for window_slice in window_slices) == pytest.approx(1)
    lengths = [[len(passages[place].text) for place in window_slice.places] for window_slice in window_slices]
    assert all(sum(of_slice) <= 100 or len(set(of_slice)) == 1 for of_slice in lengths)
    assert [length for of_slice in lengths for length in of_slice] == sorted(len(p.text) for p in passages)


def test_joined_slices_keep_places_and_count_each_batch_once() -> None:
    window = Window(Query("q"), tuple(numbered_passages([3, 1, 2, 9])))
    window_slices = sliced(window, lambda passage: 10, 20)
    assert len(window_slices) > 1

    def ranked(slice_window: Window) -> WindowRanking:
        return WindowRanking(tuple(number_in(passage.text) for passage in slice_window.passages), unscored=(0,))

    results = [
        (EncodedWindow(window_slice.window, tokens=5, truncated=(0,)), Completed(ranked(window_slice.window), 7.0, 2.0))
        for window_slice in window_slices
    ]
    encoded, done = joined(window, window_slices, results)
    assert done.result.scores == (3, 1, 2, 9)
    firsts = tuple(sorted(window_slice.places[0] for window_slice in window_slices))
    assert (encoded.truncated, done.result.unscored) == (firsts, firsts)
    assert (encoded.tokens, done.queue_ms, done.batch_ms) == (5 * len(window_slices), 7.0, 2.0)


def test_window_that_fits_a_batch_is_one_slice() -> None:
    numbers = (1.0, 2.0, 3.0)
    window = Window(Query("q"), tuple(numbered_passages(numbers)))
    (window_slice,) = sliced(window, lambda _: 1, 3)
    result = (EncodedWindow(window), Completed(WindowRanking(numbers), 1.0, 1.0))
    assert (window_slice.window, window_slice.share, joined(window, [window_slice], [result])) == (window, 1.0, result)


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
def test_slices_hold_every_passage_once_and_equal_texts_together(
    passages: list[Passage], expected: list[list[int]]
) -> None:
    assert slices(passages, lambda passage: len(passage.text), 4) == expected
