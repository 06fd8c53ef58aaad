"""Requests, engines and fake rankers for the tests of the engine.

With `ONE_BY_ONE`, every window is a batch. A NumberRanker blocks the model's thread, so that later work stays queued.
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import Cost, RankStage, Round, Schedule, Sliding, Strategy, reordered
from rerank.types import Query, Ranking, RankOptions
from tests.fakes import NumberRanker, numbered_passages

LARGE_BATCHES = EngineConfig(max_batch_tokens=4096)
ONE_BY_ONE = EngineConfig(max_batch_tokens=1)
SLIDING = Sliding(20, 10)


@dataclass(frozen=True)
class Blocks:
    """A strategy of one round of concurrent windows, each ordered by itself."""

    window_size: int

    def schedule(self, candidates: Sequence[int]) -> Schedule:
        starts = range(0, len(candidates), self.window_size)
        blocks = [tuple(candidates[start : start + self.window_size]) for start in starts]
        rankings = yield Round(tuple(blocks))
        return [
            position for block, ranking in zip(blocks, rankings, strict=True) for position in reordered(block, ranking)
        ]

    def cost(self, n: int) -> Cost:
        windows = -(-n // self.window_size)
        return Cost(windows, windows)

    def __str__(self) -> str:
        return f"blocks({self.window_size})"


def shuffled(n: int, seed: int = 0) -> list[float]:
    return [float(number) for number in random.Random(seed).sample(range(n), k=n)]


def request_for(
    numbers: Sequence[float],
    strategy: Strategy = SLIDING,
    query: str = "q",
    model: str = "number",
    options: RankOptions = RankOptions(),  # noqa: B008  (frozen)
    deadline_s: float = math.inf,
) -> Request:
    """A request whose candidates have these numbers as relevance."""
    candidates = tuple(numbered_passages(numbers))
    return Request(Query(query), candidates, (RankStage(model, strategy),), options, deadline_s)


def engine_for(ranker: NumberRanker, config: EngineConfig = LARGE_BATCHES) -> Engine:
    return Engine({"number": ranker}, config)


def positions(ranking: Ranking) -> list[int]:
    return [row.position for row in ranking.ranked]


def best_first(numbers: Sequence[float]) -> list[int]:
    return sorted(range(len(numbers)), key=lambda position: -numbers[position])


def queries(ranker: NumberRanker) -> list[str]:
    """The query of each window that was ranked."""
    return [window.query.text for window in ranker.ranked]


async def wait_until_blocked(ranker: NumberRanker) -> None:
    assert await asyncio.to_thread(ranker.entered.wait, 60), "no batch came"


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (the engine has no event for it)
            await asyncio.sleep(0.001)


async def wait_for_queue(engine: Engine, windows: int) -> None:
    """Returns once the queue holds these windows."""
    await wait_for(lambda: engine.waiting_windows == windows)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def start(*runs: Coroutine[Any, Any, Ranking]) -> list[asyncio.Task[Ranking]]:
    return [asyncio.create_task(run) for run in runs]


@asynccontextmanager
async def held_engine(
    config: EngineConfig = ONE_BY_ONE, ranker: NumberRanker | None = None
) -> AsyncIterator[tuple[Engine, NumberRanker]]:
    """An engine whose model is blocked in the batch of a request "first", and its ranker.

    When the block ends, the ranker is released and all requests are answered.
    """
    held = ranker or NumberRanker(free_batches=0)
    async with engine_for(held, config) as engine:
        (first,) = start(engine.run(request_for([1, 2], query="first")))
        await wait_until_blocked(held)
        try:
            yield engine, held
        finally:
            held.release.set()
        await first
        await wait_for(lambda: not engine.queued_requests)
