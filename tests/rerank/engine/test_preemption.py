"""Preemption: a batch of higher priority preempts a running one where the ranker pauses, and changes nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.errors import RankerFailure
from rerank.types import Ranking, Window, WindowRanking
from tests.fakes import NumberRanker
from tests.rerank.engine.harness import (
    ONE_BY_ONE,
    Blocks,
    engine_for,
    positions,
    request_for,
    start,
    wait_for_queue,
    wait_until_blocked,
)

#: Numbers of passages.
SHORT, LONG = 1, 50


class PausingRanker(NumberRanker):
    """Pauses again and again in a batch of many passages until `release` is set; raises on the query "bad"."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, supports_preemption=True)
        self.pause: Callable[[], None] | None = None

    def call_between_layers(self, function: Callable[[], None]) -> None:
        self.pause = function

    def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        if parts[0].query.text == "bad":
            raise ValueError("bad")
        if len(parts[0].passages) < LONG:
            time.sleep(0.02)
            self.batches.append(len(parts))
            self.ranked += parts
            return [WindowRanking(tuple(map(float, range(len(window.passages))))) for window in parts]
        self.entered.set()
        while not self.release.is_set():
            self.pause()  # type: ignore[misc]
            time.sleep(0.001)
        return super().score(parts)


def of_size(n: int, query: str = "q") -> Request:
    return request_for(range(n), Blocks(100), query=query)


@asynccontextmanager
async def long_batch() -> AsyncIterator[tuple[Engine, PausingRanker, asyncio.Task[Ranking]]]:
    """An engine with a long request in the middle of its batch, which ends with the block."""
    ranker = PausingRanker()
    async with engine_for(ranker, ONE_BY_ONE) as engine:
        (long,) = start(engine.run(of_size(LONG)))
        await wait_until_blocked(ranker)
        try:
            yield engine, ranker, long
        finally:
            ranker.release.set()
        assert sorted(positions(await long)) == list(range(LONG))


async def test_short_request_preempts_a_long_one_in_the_middle_of_its_batch():
    async with long_batch() as (engine, _, long):
        for _ in range(3):
            assert positions(await asyncio.wait_for(engine.run(of_size(SHORT)), 10)) == [0]
        assert not long.done()


async def test_preempted_batch_does_not_count_the_time_of_those_that_preempted_it():
    start_s = time.perf_counter()
    async with long_batch() as (engine, ranker, long):
        preempting = [await engine.run(of_size(SHORT)) for _ in range(3)]
        ranker.release.set()
        trace = (await long).trace
        total_ms = (time.perf_counter() - start_s) * 1000
    preempting_ms = sum(ranking.trace.model_ms for ranking in preempting)
    assert preempting_ms >= 3 * 20
    assert trace.model_ms <= total_ms - preempting_ms
    assert trace.queue_ms >= preempting_ms, "it waited for them"


async def test_failure_of_a_batch_that_preempts_is_its_own():
    async with long_batch() as (engine, _, _):
        with pytest.raises(RankerFailure, match="bad"):
            await engine.run(of_size(SHORT, query="bad"))
        await engine.run(of_size(SHORT))


async def test_preemption_ends_with_the_running_batch():
    """What follows is run by the thread as usual."""
    async with long_batch() as (engine, ranker, long):
        short = start(*(engine.run(of_size(SHORT)) for _ in range(10)))
        ranker.release.set()
        await asyncio.gather(long, *short)
        await engine.run(of_size(SHORT))
    assert len(ranker.ranked) == 12


async def test_ranker_without_pauses_is_not_preempted():
    ranker = NumberRanker(free_batches=0)
    async with engine_for(ranker, ONE_BY_ONE) as engine:
        (long,) = start(engine.run(of_size(LONG)))
        await wait_until_blocked(ranker)
        (short,) = start(engine.run(of_size(SHORT)))
        await wait_for_queue(engine, 1)
        assert not short.done()
        ranker.release.set()
        await asyncio.gather(long, short)
    assert [len(window.passages) for window in ranker.ranked] == [LONG, SHORT]
