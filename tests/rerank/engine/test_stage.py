"""Stages: what their observers are told about batches and results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from rerank.engine.job import Completed, ModelStage, Stage, Work
from tests.fakes import HeldRanker, NumberRanker
from tests.rerank.engine.harness import (
    ONE_BY_ONE,
    SLIDING,
    engine_for,
    held_engine,
    request_for,
    start,
    wait_for,
    wait_for_queue,
    wait_until_blocked,
)

PREPARE, RANK = (ModelStage(stage, "number") for stage in (Stage.PREPARE, Stage.RANK))


class Observations:
    """Records the stage, tokens, cancelled work and seconds of each batch, and the results of each submission."""

    def __init__(self) -> None:
        self.batches: list[tuple[ModelStage, int, int, float]] = []
        self.results: list[tuple[ModelStage, float, int]] = []

    def on_batch(self, stage: ModelStage, batch: Sequence[Work[Any, Any]], seconds: float) -> None:
        cancelled = sum(work.future.cancelled() for work in batch)
        self.batches.append((stage, sum(work.tokens for work in batch), cancelled, seconds))

    def on_results(self, stage: ModelStage, submitted_s: float, results: Sequence[Completed[Any]]) -> None:
        self.results.append((stage, submitted_s, len(results)))


async def test_observers_see_every_batch_and_every_result() -> None:
    seen, start_s = Observations(), time.perf_counter()
    async with engine_for(NumberRanker(), ONE_BY_ONE) as engine:
        engine.observe_batches(seen.on_batch)
        engine.observe_results(seen.on_results)
        ranking = await engine.run(request_for(range(30), SLIDING))
    rank_batches = [batch for batch in seen.batches if batch[0] == RANK]
    assert [tokens for _, tokens, _, _ in rank_batches] == [window.tokens for window in ranking.trace.windows]
    assert all(seconds >= 0 and not cancelled for _, _, cancelled, seconds in seen.batches)
    assert [(stage, count) for stage, _, count in seen.results] == [(PREPARE, 1), (RANK, 1), (RANK, 1)]
    assert all(start_s <= submitted_s <= time.perf_counter() for _, submitted_s, _ in seen.results)


async def test_batch_of_a_cancelled_request_is_reported_as_cancelled_and_is_its_last() -> None:
    ranker, seen = HeldRanker(), Observations()
    async with engine_for(ranker, ONE_BY_ONE) as engine:
        engine.observe_batches(seen.on_batch)
        (task,) = start(engine.run(request_for(range(100), SLIDING)))
        await wait_until_blocked(ranker)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.queued_requests == 0
        ranker.release.set()
    assert [cancelled for stage, _, cancelled, _ in seen.batches if stage == RANK] == [1]
    assert seen.results == []


async def test_queue_counts_admitted_requests_and_their_tokens() -> None:
    async with held_engine() as (engine, ranker):
        (waiting,) = start(engine.run(request_for(range(20), SLIDING)))
        await wait_for_queue(engine, 1)
        assert engine.queued_requests == 2
        assert engine.queued_tokens > 0
        ranker.release.set()
        await waiting
        await wait_for(lambda: not engine.queued_requests)
        assert engine.queued_tokens == 0
