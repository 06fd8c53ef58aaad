"""Scheduler of work on a server: limit, order, cancellation and failures; its rate follows what a phase does."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from rerank.engine.request import ModelPhase, Phase, Request
from rerank.engine.scheduler import Observers, Rate, Scheduler
from rerank.errors import ModelServerUnavailable, ShuttingDown
from rerank.types import Query

PHASE = ModelPhase(Phase.RANK, "zephyr")


class SlowServer:
    """Answers a number with its double after `seconds`; fails on 13 with `error`."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds = seconds
        self.error: Exception = ModelServerUnavailable("gone")
        self.running = self.most_running = 0
        self.started: list[int] = []

    async def __call__(self, work: int) -> int:
        self.started.append(work)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await asyncio.sleep(self.seconds)
            if work == 13:
                raise self.error
            return 2 * work
        finally:
            self.running -= 1


@asynccontextmanager
async def calls_of(server: SlowServer, max_in_flight: int) -> AsyncIterator[Scheduler[int, int]]:
    async def run_batch(inputs: Sequence[int], limit_s: float) -> tuple[list[int], float]:
        start_s = time.perf_counter()
        return [await server(work) for work in inputs], time.perf_counter() - start_s

    calls = Scheduler(PHASE, run_batch, Observers(), max_in_flight=max_in_flight, can_cancel=True)
    yield calls
    await calls.close()


def request(remaining: float = 0.0) -> Request:
    made = Request(Query(""), (), ())
    made.remaining[PHASE] = remaining
    return made


async def test_results_keep_the_order_of_the_work():
    async with calls_of(SlowServer(), max_in_flight=2) as calls:
        results = await calls.run(request(), [1, 2, 3, 4, 5], [10] * 5)
    assert [result.result for result in results] == [2, 4, 6, 8, 10]
    assert all(result.batch_ms > 0 for result in results)
    assert results[4].queue_ms > results[0].queue_ms


async def test_no_more_calls_than_allowed_are_in_flight():
    server = SlowServer()
    async with calls_of(server, max_in_flight=3) as calls:
        await asyncio.gather(*(calls.run(request(), [1, 2], [10, 10]) for _ in range(5)))
    assert server.most_running == 3


async def test_request_with_the_least_work_goes_first():
    server = SlowServer()
    async with calls_of(server, max_in_flight=1) as calls:
        first = asyncio.create_task(calls.run(request(), [0, 1], [10, 10]))
        await asyncio.sleep(0)
        long = asyncio.create_task(calls.run(request(10_000), [2], [10]))
        short = asyncio.create_task(calls.run(request(10), [3], [10]))
        await asyncio.gather(first, long, short)
    assert server.started.index(3) < server.started.index(2)


async def test_cancelled_request_ends_its_calls_and_leaves_the_queue():
    server = SlowServer(seconds=30)
    async with calls_of(server, max_in_flight=2) as calls:
        task = asyncio.create_task(calls.run(request(), [1, 2, 3, 4], [10] * 4))
        await asyncio.sleep(0.1)
        assert server.running == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert (server.running, len(calls)) == (0, 0)
        server.seconds = 0.0
        results = await calls.run(request(), [5], [10])  # the places are free again
        assert [result.result for result in results] == [10]
    assert 4 not in server.started


async def test_closing_ends_queued_work_and_lets_calls_finish():
    server = SlowServer(seconds=0.1)
    async with calls_of(server, max_in_flight=1) as calls:
        running = asyncio.create_task(calls.run(request(), [1], [10]))
        await asyncio.sleep(0.01)
        queued = [asyncio.create_task(calls.run(request(), [number], [10])) for number in (2, 3)]
        await asyncio.sleep(0.01)
    assert [done.result for done in await running] == [2]
    for task in queued:
        with pytest.raises(ShuttingDown):
            await task
    with pytest.raises(ShuttingDown):
        await calls.run(request(), [4], [10])


async def test_measured_rate_is_that_of_all_calls_together():
    """Ten calls of 100 tokens that take 0.1 s side by side are 10,000 tokens per second, not 1,000."""
    async with calls_of(SlowServer(seconds=0.1), max_in_flight=64) as calls:
        for _ in range(3):
            await asyncio.gather(*(calls.run(request(), [1], [100]) for _ in range(10)))
    assert calls.rate.tokens_per_s
    assert 2_500 < calls.rate.tokens_per_s < 10_500


async def test_work_of_a_request_that_ended_does_not_run_again_after_its_batch_failed():
    batches, runs, may_fail = list[Sequence[int]](), asyncio.Event(), asyncio.Event()

    async def run_batch(inputs: Sequence[int], limit_s: float) -> tuple[Sequence[int], float]:
        batches.append(inputs)
        runs.set()
        if len(inputs) > 1:
            await may_fail.wait()
            raise ModelServerUnavailable("gone")
        return inputs, 0.0

    scheduler = Scheduler(PHASE, run_batch, Observers(), max_batch_tokens=10)
    ended, other = (asyncio.create_task(scheduler.run(request(), [number], [1])) for number in (1, 2))
    await runs.wait()
    ended.cancel()
    await asyncio.wait({ended})
    may_fail.set()
    assert [done.result for done in await other] == [2]
    assert batches == [[1, 2], [2]]
    await scheduler.close()


async def test_batch_may_take_ten_minutes_before_a_rate_is_measured_then_twenty_times_its_time_or_a_minute():
    limits_s = list[float]()

    async def run_batch(inputs: Sequence[int], limit_s: float) -> tuple[Sequence[int], float]:
        limits_s.append(limit_s)
        return inputs, 0.0

    scheduler = Scheduler(PHASE, run_batch, Observers(), max_batch_tokens=1)
    await scheduler.run(request(), [1], [1])
    scheduler.rate = Rate()
    for tokens in (1, 100):  # the first batch warms the model up
        scheduler.rate.observe(tokens, seconds=1.0)
    await scheduler.run(request(), [1], [10])
    scheduler.rate.observe(1e9, seconds=1e7)  # 100 tokens per second, which the call before does not change
    await scheduler.run(request(), [1], [1000])
    assert limits_s == pytest.approx([600.0, 60.0, 200.0], rel=0.01)
    await scheduler.close()


def measured(*batches: tuple[float, float]) -> Rate:
    """A rate of batches of (tokens, seconds), after the one that warms up."""
    rate = Rate()
    for tokens, seconds in [(1.0, 1000.0), *batches]:
        rate.observe(tokens, seconds)
    return rate


def test_first_batch_of_a_model_is_not_counted():
    assert (Rate().tokens_per_s, measured().tokens_per_s) == (None, None)
    assert measured((100, 0.5)).tokens_per_s == 200.0


def test_rate_follows_the_seconds_in_which_a_phase_worked():
    slower = measured(*[(1000, 1.0)] * 9, *[(100, 1.0)] * 9).tokens_per_s
    assert slower == pytest.approx(100, rel=0.2)
    faster = measured((10, 1.0), *[(100, 0.01)] * 1000).tokens_per_s
    assert faster == pytest.approx(10_000, rel=0.02)


@pytest.mark.parametrize("small", [(30, 0.005), (100, 0.0001)], ids=["fixed cost", "nothing to compute"])
def test_large_batches_decide_among_small_ones(small):
    """Ten small ones for each large one, whose rate is a third and fifty times the large one's."""
    rate = measured(*[*[small] * 10, (20_000, 1.0)] * 5).tokens_per_s
    assert rate == pytest.approx(20_000, rel=0.1)
