"""Open-loop load: arrivals, latencies from the intended start, percentiles, goodput and capacity."""

from __future__ import annotations

import asyncio
import math
import random
from itertools import pairwise

import pytest

from scripts.load_test.open_loop import (
    LoadReport,
    Outcome,
    TimedCall,
    capacity,
    open_loop,
    percentile,
    poisson_arrivals,
)

OK = Outcome("OK")


def report(*statuses: str, seconds: float = 2.0) -> LoadReport:
    """Calls of 1, 2, 3, … seconds that ended in these statuses."""
    return LoadReport([TimedCall(0.0, float(n), Outcome(s)) for n, s in enumerate(statuses, start=1)], seconds)


def test_arrivals_have_the_rate_and_are_the_same_for_the_same_seed() -> None:
    times = poisson_arrivals(50.0, 100.0, random.Random(1))
    assert times == poisson_arrivals(50.0, 100.0, random.Random(1))
    assert times != poisson_arrivals(50.0, 100.0, random.Random(2))
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < 100
    assert len(times) == pytest.approx(5000, rel=0.05)


def test_gaps_of_arrivals_vary_as_those_of_independent_callers() -> None:
    times = poisson_arrivals(10.0, 500.0, random.Random(1))
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation == pytest.approx(mean, rel=0.1)  # an exponential distribution; 0 at a fixed interval


async def test_calls_start_although_earlier_ones_are_not_answered() -> None:
    release, started = asyncio.Event(), []

    async def call(number: int) -> Outcome:
        started.append(number)
        if number == 3:
            release.set()
        await release.wait()
        return OK

    done = await asyncio.wait_for(open_loop(call, [0.0, 0.01, 0.02, 0.03], 0.04), 30)
    assert started == [0, 1, 2, 3]
    assert done.statuses == {"OK": 4}


async def test_latency_counts_from_the_intended_start() -> None:
    """A generator that is held up must not hide that requests waited."""

    async def call(number: int) -> Outcome:
        import time

        if number == 0:
            time.sleep(0.2)  # noqa: ASYNC251  (blocks the loop, so that the next call starts late)
        return OK

    done = await open_loop(call, [0.0, 0.01], 0.02)
    assert done.calls[1].latency_s >= 0.18


async def test_open_loop_without_arrivals_has_no_calls() -> None:
    done = await open_loop(lambda number: asyncio.sleep(0, OK), [], 0.01)
    assert (list(done.calls), done.goodput, done.statuses) == ([], 0.0, {})
    assert math.isnan(done.percentile_ms(99))


def test_percentiles_are_measured_values_of_one_status_and_goodput_counts_answers_only() -> None:
    calls = report("OK", "OK", "UNAVAILABLE", "DEADLINE_EXCEEDED")
    assert calls.goodput == 1.0
    assert calls.percentile_ms(100) == 2000
    assert calls.percentile_ms(50) == 1000
    assert calls.percentile_ms(50, "UNAVAILABLE") == 3000
    assert math.isnan(calls.percentile_ms(50, "INTERNAL"))
    assert percentile([float(value) for value in range(1, 101)], 99) == 99.0
    assert percentile([7.0], 0) == 7.0


def test_refusals_that_do_not_say_when_to_try_again_are_counted() -> None:
    outcomes = Outcome("RESOURCE_EXHAUSTED", True), Outcome("RESOURCE_EXHAUSTED"), Outcome("UNAVAILABLE"), OK
    calls = LoadReport([TimedCall(0.0, 1.0, outcome) for outcome in outcomes], 1.0)
    assert calls.refusals_without_retry_info == 1


async def test_capacity_is_that_of_a_service_of_one_answer_at_a_time() -> None:
    one_at_a_time = asyncio.Lock()

    async def call(number: int) -> Outcome:
        async with one_at_a_time:
            await asyncio.sleep(0.01)
        return OK if number % 2 else Outcome("UNAVAILABLE")

    assert 10 < await capacity(call, callers=4, seconds=0.5) <= 50  # a half of at most 100 calls per second
