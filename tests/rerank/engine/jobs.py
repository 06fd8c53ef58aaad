"""Jobs, engines and fake rankers for the tests of the engine.

With `ONE_BY_ONE`, every window is a batch. A HeldRanker blocks the model's thread, so that later work stays queued.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rerank.config import EngineConfig
from rerank.engine.admission import ModelStage, Stage
from rerank.engine.engine import Engine
from rerank.engine.job import Job
from rerank.engine.strategies import Cost, Round, Schedule, Sliding, Strategy, reordered
from rerank.types import Candidate, EncodedWindow, Passage, Prepared, Query, Ranking, Window, WindowRanking
from tests.fakes import HeldRanker, NumberRanker, numbered_passages

LARGE_BATCHES = EngineConfig(max_batch_tokens=4096)
ONE_BY_ONE = EngineConfig(max_batch_tokens=1)
SLIDING = Sliding(20, 10)


@dataclass(frozen=True)
class Blocks:
    """A strategy of one round of concurrent windows, each ordered by itself."""

    window_size: int
    name: ClassVar[str] = "blocks"

    def schedule(self, n: int) -> Schedule:
        blocks = [tuple(range(start, min(start + self.window_size, n))) for start in range(0, n, self.window_size)]
        rankings = yield Round(tuple(blocks))
        return [
            position for block, ranking in zip(blocks, rankings, strict=True) for position in reordered(block, ranking)
        ]

    def cost(self, n: int) -> Cost:
        return Cost.exactly(-(-n // self.window_size), min(n, 1))

    def __str__(self) -> str:
        return f"blocks({self.window_size})"


class ObservedRanker(NumberRanker):
    """Records the threads that call each of its methods, and the number of requests it prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[str, set[int]] = {"prepare": set(), "encode": set(), "rank": set()}
        self.prepared = 0

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        self.threads["prepare"].add(threading.get_ident())
        self.prepared += 1
        return Prepared(query, tuple(passages), truncated_doc_ids=("d2", "d0"))

    def encode(self, window: Window) -> EncodedWindow:
        self.threads["encode"].add(threading.get_ident())
        return super().encode(window)

    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        self.threads["rank"].add(threading.get_ident())
        return super().rank(windows)


def shuffled(n: int, seed: int = 0) -> list[float]:
    return [float(number) for number in random.Random(seed).sample(range(n), k=n)]


def job_for(
    numbers: Sequence[float],
    strategy: Strategy = SLIDING,
    query: str = "q",
    model: str = "number",
    deadline: float | None = None,
    allow_partial: bool = False,
) -> Job:
    """A job whose candidates have these numbers as relevance."""
    candidates = tuple(Candidate(passage) for passage in numbered_passages(numbers))
    return Job(model, Query(query), candidates, strategy, top_n=0, deadline=deadline, allow_partial=allow_partial)


def engine_for(ranker: NumberRanker, config: EngineConfig = LARGE_BATCHES) -> Engine:
    return Engine({"number": ranker}, config)


def positions(ranking: Ranking) -> list[int]:
    return [row.position for row in ranking.ranked]


def best_first(numbers: Sequence[float]) -> list[int]:
    return sorted(range(len(numbers)), key=lambda position: -numbers[position])


def queries(ranker: NumberRanker) -> list[str]:
    """The query of each window that was ranked."""
    return [window.query.text for window in ranker.ranked]


async def wait_until_blocked(ranker: HeldRanker) -> None:
    assert await asyncio.to_thread(ranker.entered.wait, 60), "no batch came"


async def wait_for_queue(engine: Engine, windows: int) -> None:
    """Returns once the queue holds so many windows."""
    async with asyncio.timeout(60):
        while engine.waiting_windows != windows:  # noqa: ASYNC110  (the engine has no event for it)
            await asyncio.sleep(0.001)


def set_throughput(engine: Engine, tokens_per_s: float) -> None:
    """Makes the engine assume this rate as if it had measured it just before the test's next minute."""
    model_stage = ModelStage(Stage.RANK, "number")
    engine.throughput._rates.pop(model_stage, None)
    for _ in range(2):  # the first batch is not counted
        engine.throughput.observe(model_stage, tokens_per_s, 1.0, now_s() + 60)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def start(*jobs: Coroutine[Any, Any, Ranking]) -> list[asyncio.Task[Ranking]]:
    return [asyncio.create_task(job) for job in jobs]
