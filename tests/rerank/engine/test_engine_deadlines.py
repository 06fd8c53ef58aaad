"""Engine: deadlines, cancellation, partial answers and answers after a failure."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.strategies import RankStage, Single, Sliding, spans
from rerank.errors import DeadlineExceeded, Overloaded, RankerFailure, SelfTestFailed
from rerank.rankers.failed import FailedRanker
from rerank.types import Completeness, OnFailure, RankOptions, ScoreKind
from tests.fakes import NumberRanker, number_in
from tests.rerank.engine.harness import (
    ONE_BY_ONE,
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


async def test_queued_windows_of_a_cancelled_request_never_run():
    async with held_engine() as (engine, ranker):
        cancelled, _ = start(*(engine.run(request_for([1, 2], query=name)) for name in ("cancelled", "last")))
        await wait_for_queue(engine, 2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert queries(ranker) == ["first", "last"]


@pytest.mark.parametrize("windows_done", [0, 2])
async def test_deadline_ends_a_request_before_its_next_window(windows_done):
    ranker = NumberRanker(free_batches=windows_done)
    async with engine_for(ranker) as engine:
        with pytest.raises(DeadlineExceeded, match=r"the deadline passed after \d+ ms, (before any|when 2)") as caught:
            await engine.run(request_for(shuffled(100), query="late", deadline_s=now_s() + 0.3))
        assert caught.value.metadata == {"windows_done": str(len(ranker.ranked))}
        ranker.release.set()
        await engine.run(request_for([1, 2], query="after"))
    assert queries(ranker).count("late") <= windows_done + 1, "the running window may end"
    assert queries(ranker)[-1] == "after"


@pytest.mark.parametrize("late_s", [0.0, 5.0])
async def test_request_whose_deadline_has_passed_is_not_prepared(late_s):
    ranker = NumberRanker()
    async with engine_for(ranker) as engine:
        with pytest.raises(DeadlineExceeded, match=r"the deadline passed after \d+ ms, before any window was ranked"):
            await engine.run(request_for(shuffled(100), deadline_s=now_s() - late_s))
    assert ranker.prepared == []


async def test_queued_window_never_runs_once_its_deadline_has_passed():
    async with held_engine() as (engine, ranker):
        late_request = request_for(shuffled(100), query="late", deadline_s=now_s() + 0.2)
        late, _ = start(engine.run(late_request), engine.run(request_for([1, 2], query="last")))
        await wait_for_queue(engine, 2)
        with pytest.raises(DeadlineExceeded):
            await late
        assert engine.waiting_windows == 1
    assert queries(ranker) == ["first", "last"]


async def test_slow_small_requests_refuse_no_large_one():
    """At their rate of tokens, its work takes five times its deadline. Two small requests a second refused them all."""
    ranker = NumberRanker(free_batches=0)
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
async def test_partial_answer_is_the_best_order_so_far(windows_done):
    ranker = NumberRanker(free_batches=windows_done)
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


# --- answers after a failure ---

FIRST_STAGE = RankOptions(on_failure=OnFailure.FIRST_STAGE)
PAIRS = Sliding(2, 1)


def failing_ranker(number: int, error: Exception) -> NumberRanker:
    """Raises `error` at the window of this number."""

    def fail(method: str, *_: Any) -> None:
        if method == "score" and len(ranker.ranked) >= number:
            raise error

    ranker = NumberRanker(instead=fail)
    return ranker


@pytest.mark.parametrize("windows_done", [0, 3])
async def test_order_of_the_windows_before_the_failure_is_the_answer(windows_done, caplog):
    numbers = [float(number) for number in range(10)]
    async with engine_for(failing_ranker(windows_done, ValueError("secret of the model")), ONE_BY_ONE) as engine:
        with caplog.at_level(logging.ERROR):
            ranking = await engine.run(request_for(numbers, PAIRS, options=FIRST_STAGE))
        with pytest.raises(RankerFailure, match="secret of the model"):
            await engine.run(request_for(numbers, PAIRS))
        assert (engine.queued_requests, engine.waiting_windows) == (0, 0)
    best = 9 - windows_done  # the last candidate is the best, and rises by one position per window
    assert positions(ranking) == [*range(best), 9, *range(best, 9)]
    assert ranking.trace.completeness is (Completeness.PARTIAL if windows_done else Completeness.NONE)
    assert ranking.trace.failure is RankerFailure
    assert ranking.trace.reason == (
        f"the model failed after {windows_done} of 9 windows of sliding(2/1): internal error; this is a bug of the "
        "service, see its log for details"
    )
    assert "bug: a request was answered without its ranking" in caplog.text
    assert "secret of the model" in caplog.text


async def test_full_queue_answers_at_once_with_the_first_stage():
    async with held_engine(EngineConfig(max_batch_tokens=1, max_queue_tokens=100)) as (engine, ranker):
        ranking = await engine.run(request_for(shuffled(50), options=FIRST_STAGE))
        ran = len(ranker.ranked)
    assert (positions(ranking), ranking.trace.failure, ran) == (list(range(50)), Overloaded, 0)
    assert "more exceed the limit of 100; retry in" in ranking.trace.reason


async def test_failure_of_the_engine_itself_is_an_error_in_any_case(monkeypatch):
    async with engine_for(NumberRanker()) as engine:
        monkeypatch.setattr(engine, "_run_stage", lambda request, stage: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await engine.run(request_for([1, 2], options=FIRST_STAGE))


@pytest.mark.parametrize("n", [3, 30])
async def test_cascade_whose_last_model_fails_has_the_order_and_no_scores_of_its_preranker(n):
    """The scores of the one window that held all passages would be another model's."""
    numbers = shuffled(n)
    failed = FailedRanker("failed", NumberRanker().info, "its scores are wrong")
    stages = (RankStage("number", Single(30)), RankStage("failed", Single(20)))
    request = replace(request_for(numbers, options=FIRST_STAGE), stages=stages)
    async with Engine({"number": NumberRanker(), "failed": failed}, ONE_BY_ONE) as engine:
        ranking = await engine.run(request)
    scores = [number_in(row.passage.text) for row in ranking.ranked]
    assert scores == sorted(numbers, reverse=True)
    assert ranking.score_kind is ScoreKind.RANK
    assert [row.score for row in ranking.ranked] == list(range(n, 0, -1))
    assert (ranking.trace.model, ranking.trace.failure) == ("failed", SelfTestFailed)
    assert ranking.trace.completeness is Completeness.PARTIAL
