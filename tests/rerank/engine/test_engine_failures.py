"""Engine: failures of a ranker, out of memory, full queues and shutdown."""

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rerank.config import EngineConfig
from rerank.engine.accounts import Shared
from rerank.engine.engine import Engine
from rerank.engine.request import Phase, Request
from rerank.engine.strategies import RankStage, Single
from rerank.errors import Overloaded, RankerFailure, ShuttingDown
from rerank.types import Passage, Query, Window, WindowRanking
from tests.fakes import NumberRanker
from tests.rerank.engine.harness import (
    LARGE_BATCHES,
    Blocks,
    best_first,
    engine_for,
    held_engine,
    positions,
    request_for,
    shuffled,
    start,
    wait_for_queue,
    wait_until_blocked,
)


def small_ranker(most_windows: int, free_batches: float) -> tuple[NumberRanker, list[int]]:
    """One that runs out of memory on batches of more than `most_windows`, and the sizes of the batches it was given."""
    tried: list[int] = []

    def run_out(method: str, parts: Any, *_: Any) -> None:
        if method == "score":
            tried.append(len(parts))
            if len(parts) > most_windows:
                raise MemoryError("tried to allocate 2.00 GiB")

    return NumberRanker(instead=run_out, free_batches=free_batches), tried


def poisoned() -> Request:
    candidates = (Passage("d0", "poison"), Passage("d1", "relevance 1"))
    return Request(Query("poisoned"), candidates, (RankStage("number", Single(2)),))


def raises(windows: Sequence[Window]) -> list[WindowRanking]:
    raise ValueError("boom")


def all_scores(score: float) -> Callable[[Sequence[Window]], list[WindowRanking]]:
    return lambda windows: [WindowRanking((score,) * len(encoded.passages)) for encoded in windows]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (raises, r"ValueError\('boom'\); this is a bug"),
        (lambda _: [], "is shorter than.*; this is a bug"),
        (lambda some: [WindowRanking((1.0,))] * len(some), "returned 1 scores for a window of 2 passages; this is a "),
        (lambda windows: [WindowRanking((1.0, 2.0))] * (len(windows) + 1), "is longer than.*; this is a bug"),
        (all_scores(math.nan), "its scores are not finite: weights with NaN, or too large for the precision"),
        (all_scores(math.inf), "its scores are not finite: weights with NaN, or too large for the precision"),
        (lambda _: 0, "TypeError.*; this is a bug"),
    ],
    ids=["raises", "no ranking", "too few scores", "too many rankings", "nan", "infinity", "number"],
)
async def test_failure_affects_only_its_own_window(answer, problem):
    batches: list[int] = []

    def answer_poison(method: str, parts: Any, *_: Any) -> list[WindowRanking] | None:
        if method != "score" or all(passage.text != "poison" for part in parts for passage in part.passages):
            return None
        batches.append(len(parts))
        return answer(parts)

    numbers = shuffled(50)
    async with held_engine(LARGE_BATCHES, NumberRanker(instead=answer_poison, free_batches=0)) as (engine, ranker):
        tasks = start(*(engine.run(one) for _ in range(2) for one in (poisoned(), request_for(numbers))))
        await wait_for_queue(engine, 4)
        ranker.release.set()
        await asyncio.wait(tasks)
        rankings = [*await asyncio.gather(*tasks[1::2]), await engine.run(request_for(numbers))]
    assert max(batches) > 1, "a poisoned window shared its batch"
    for failed in tasks[::2]:
        with pytest.raises(RankerFailure, match=problem):
            await failed
    assert [positions(ranking)[:10] for ranking in rankings] == [best_first(numbers)[:10]] * 3


async def test_timeout_error_of_a_ranker_is_not_a_deadline():
    def time_out(method: str, *_: Any) -> None:
        raise TimeoutError("disk")

    async with engine_for(NumberRanker(instead=time_out)) as engine:
        with pytest.raises(RankerFailure, match=r"failed to prepare: TimeoutError\('disk'\)"):
            await engine.run(request_for([1, 2]))


async def test_out_of_memory_halves_the_batch_size_and_runs_the_windows_one_by_one():
    ranker, tried = small_ranker(most_windows=5, free_batches=0)
    async with held_engine(LARGE_BATCHES, ranker) as (engine, _):
        (eight,) = start(engine.run(request_for(shuffled(80), Blocks(10))))
        await wait_for_queue(engine, 8)
        ranker.release.set()
        first = await eight
        again = await engine.run(request_for(shuffled(80), Blocks(10)))
        assert positions(first) == positions(again)
    assert tried == [1, 8, *[1] * 8, 4, 4]


async def test_part_of_a_cancelled_request_does_not_run_again_alone():
    together, go, tried = threading.Event(), threading.Event(), list[list[str]]()

    def fail_together(method: str, parts: Any, *_: Any) -> None:
        if method == "score":
            tried.append([part.query.text for part in parts])
            if len(parts) > 1:
                together.set()
                go.wait(60)
                raise ValueError("together")

    ranker = NumberRanker(instead=fail_together, free_batches=0)
    async with held_engine(LARGE_BATCHES, ranker) as (engine, _):
        kept, cancelled = start(*(engine.run(request_for([1, 2], query=query)) for query in ("kept", "cancelled")))
        await wait_for_queue(engine, 2)
        ranker.release.set()
        assert await asyncio.to_thread(together.wait, 60)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        go.set()
        assert positions(await kept) == [1, 0]
    assert tried == [["first"], ["kept", "cancelled"], ["kept"]]


async def test_window_that_alone_exceeds_the_memory_fails_with_its_size():
    ranker, _ = small_ranker(most_windows=0, free_batches=math.inf)
    async with engine_for(ranker) as engine:
        with pytest.raises(RankerFailure, match="a window of 20 tokens exceeds the memory; use a smaller window_size"):
            await engine.run(request_for([1, 2]))


async def test_full_queue_refuses_and_says_when_to_come_again():
    """At 10 tokens per second, its 20 tokens to rank take 2 s."""
    config = EngineConfig(max_batch_tokens=1, max_queue_tokens=1000)
    async with held_engine(config) as (engine, _):
        held = engine.accounts.held_by("", Shared.TOKENS)
        with pytest.raises(Overloaded, match=f"{held} tokens queued, {held} of them yours; .* more exceed") as caught:
            await engine.run(request_for(shuffled(300), Blocks(100)))
        assert caught.value.metadata == {"exceeded": "max_queue_tokens", "held": str(held), "limit": "1000"}
        assert caught.value.retry_after_s == 1.0
        for _ in range(2):  # the first one is not counted
            engine._models["number"].rate(Phase.RANK).observe(10, 1.0)
        with pytest.raises(Overloaded) as caught:
            await engine.run(request_for(shuffled(300), Blocks(100)))
        assert caught.value.retry_after_s == pytest.approx(2.0)
        assert (engine.queued_requests, engine.queued_tokens) == (1, 20)
        small = asyncio.create_task(engine.run(request_for([1, 2])))
        await wait_for_queue(engine, 1)
    assert positions(await small) == [1, 0]


async def test_empty_queue_takes_a_request_beyond_its_limit():
    async with engine_for(NumberRanker(), EngineConfig(max_queue_tokens=10)) as engine:
        for _ in range(2):
            assert positions(await engine.run(request_for([1, 2, 3]))) == [2, 1, 0]


async def close_in_a_batch(engine: Engine, ranker: NumberRanker) -> None:
    """Closes the engine while a batch runs, which ends after closing has begun."""
    closing = asyncio.create_task(engine.__aexit__())
    await asyncio.sleep(0)  # closing has begun
    ranker.release.set()
    await closing


async def test_closing_finishes_running_batches_and_fails_what_waits_or_has_further_windows():
    """The next window of the latter would wait for an engine that no longer runs."""
    ranker = NumberRanker(free_batches=0)
    engine = await engine_for(ranker, LARGE_BATCHES).__aenter__()
    (further,) = start(engine.run(request_for(shuffled(50))))
    await wait_until_blocked(ranker)
    queued = start(*(engine.run(request_for([1, 2])) for _ in range(3)))
    await wait_for_queue(engine, 3)
    await close_in_a_batch(engine, ranker)
    for task in (further, *queued):
        with pytest.raises(ShuttingDown, match="the service is stopping; try another replica"):
            await asyncio.wait_for(task, 10)
    assert len(ranker.ranked) == 1


async def test_closing_answers_the_request_whose_last_batch_runs():
    ranker = NumberRanker(free_batches=0)
    engine = await engine_for(ranker).__aenter__()
    (running,) = start(engine.run(request_for([1, 2])))
    await wait_until_blocked(ranker)
    await close_in_a_batch(engine, ranker)
    assert positions(await running) == [1, 0]
