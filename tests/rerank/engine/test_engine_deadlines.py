"""Engine: deadlines, cancellation, partial answers and the order of requests."""

from __future__ import annotations

import asyncio

import pytest

from rerank.engine.strategies import Single, spans
from rerank.errors import DeadlineExceeded
from rerank.types import Completeness, RankOptions
from tests.fakes import HeldRanker
from tests.rerank.engine.harness import (
    ONE_BY_ONE,
    ObservedRanker,
    best_first,
    engine_for,
    held_engine,
    now_s,
    positions,
    queries,
    request_for,
    shuffled,
    start,
    wait_for_queue,
    wait_until_blocked,
)

PARTIAL = RankOptions(allow_partial=True)


async def test_queued_windows_of_a_cancelled_request_never_run() -> None:
    async with held_engine() as (engine, ranker):
        cancelled, _ = start(*(engine.run(request_for([1, 2], query=name)) for name in ("cancelled", "last")))
        await wait_for_queue(engine, 2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert queries(ranker) == ["first", "last"]


@pytest.mark.parametrize("windows_done", [0, 2])
async def test_deadline_ends_a_request_before_its_next_window(windows_done: int) -> None:
    ranker = HeldRanker(free_batches=windows_done)
    async with engine_for(ranker) as engine:
        with pytest.raises(DeadlineExceeded, match=r"the deadline passed after \d+ ms, (before any|when 2)") as caught:
            await engine.run(request_for(shuffled(100), query="late", deadline_s=now_s() + 0.3))
        assert caught.value.metadata == {"windows_done": str(len(ranker.ranked))}
        ranker.release.set()
        await engine.run(request_for([1, 2], query="after"))
    assert queries(ranker).count("late") <= windows_done + 1, "the running window may end"
    assert queries(ranker)[-1] == "after"


@pytest.mark.parametrize("late_s", [0.0, 5.0])
async def test_request_whose_deadline_has_passed_is_not_prepared(late_s: float) -> None:
    ranker = ObservedRanker()
    async with engine_for(ranker) as engine:
        with pytest.raises(DeadlineExceeded, match="the deadline passed after 0 ms, before any window was ranked"):
            await engine.run(request_for(shuffled(100), deadline_s=now_s() - late_s))
    assert ranker.prepared == 0


async def test_queued_window_never_runs_once_its_deadline_has_passed() -> None:
    async with held_engine() as (engine, ranker):
        late, _ = start(
            engine.run(request_for(shuffled(100), query="late", deadline_s=now_s() + 0.2)),
            engine.run(request_for([1, 2], query="last")),
        )
        await wait_for_queue(engine, 2)
        with pytest.raises(DeadlineExceeded):
            await late
        assert engine.waiting_windows == 1
    assert queries(ranker) == ["first", "last"]


async def test_slow_small_requests_refuse_no_large_one() -> None:
    """At their rate of tokens, its work takes five times its deadline. Two small requests a second refused them all."""
    ranker = HeldRanker()
    async with engine_for(ranker, ONE_BY_ONE) as engine:
        for _ in range(3):
            ranker.entered.clear()
            ranker.release.clear()
            (small,) = start(engine.run(request_for([1, 2])))
            await wait_until_blocked(ranker)
            await asyncio.sleep(0.1)
            ranker.release.set()
            await small
        numbers = shuffled(1000)
        ranking = await engine.run(request_for(numbers, Single(1000), deadline_s=now_s() + 10))
    assert positions(ranking) == best_first(numbers)


@pytest.mark.parametrize("windows_done", [0, 1, 5])
async def test_partial_answer_is_the_best_order_so_far(windows_done: int) -> None:
    ranker = HeldRanker(free_batches=windows_done)
    numbers = shuffled(100)
    async with engine_for(ranker) as engine:
        ranking = await engine.run(request_for(numbers, deadline_s=now_s() + 0.5, options=PARTIAL))
        ranker.release.set()
    order = list(range(100))
    for start_, end in list(spans(100, 20, 10))[:windows_done]:
        order[start_:end] = sorted(order[start_:end], key=lambda position: -numbers[position])
    assert positions(ranking) == order
    assert ranking.trace.completeness is (Completeness.PARTIAL if windows_done else Completeness.NONE)
    assert ranking.trace.reason == f"the deadline came after {windows_done} of 9 windows of sliding(20/10)"
    assert len(ranking.trace.windows) == windows_done
