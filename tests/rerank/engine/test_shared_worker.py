"""The thread for work on texts: callers take their turns between slices, and it ends with its reranker."""

import asyncio
import time
from typing import Any

import pytest

from rerank.engine.worker import SharedWorker
from rerank.errors import InvalidRequest, ShuttingDown
from rerank.types import SlicedWork

SLICE_S = 0.01  # longer than a slice lasts, so that there is one step in each
LONG = 1000.0


def steps(name: str, number: int, done: list[str]) -> SlicedWork[str]:
    for _ in range(number):
        time.sleep(SLICE_S)
        done.append(name)
        yield
    return name


async def results(*works: tuple[str, SlicedWork[Any], float]) -> list[Any]:
    """The results of work of these callers, which comes in this order, and is expected to take the given ms."""
    worker = SharedWorker("work")
    found = await asyncio.gather(*(worker.run(*work) for work in works), return_exceptions=True)
    worker.close()
    return found


async def test_callers_take_turns_between_slices_however_many_requests_they_have():
    done = list[str]()
    many = [("many", steps("many", 6, done), LONG) for _ in range(5)]
    assert await results(*many, ("one", steps("one", 6, done), LONG)) == [*["many"] * 5, "one"]
    assert done[:12].count("one") in (5, 6)
    assert len(done) == 36


async def test_short_work_of_a_caller_waits_for_a_slice_of_its_long_work():
    done = list[str]()
    works = [("a", steps("long", 10, done), LONG) for _ in range(4)]
    await results(*works, ("a", steps("short", 1, done), 2.0))
    assert done.index("short") <= 4


async def test_cancelled_work_runs_no_further_slice():
    done, worker = list[str](), SharedWorker("work")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5 * SLICE_S):
            await worker.run("a", steps("late", 1000, done), LONG)
    so_far = len(done)
    await asyncio.sleep(4 * SLICE_S)
    assert len(done) <= so_far + 1
    worker.close()


async def test_errors_are_those_of_the_work():
    def failing(error: Exception) -> SlicedWork[None]:
        yield
        raise error

    refused, bug = await results(("a", failing(InvalidRequest("query", "no")), 1), ("b", failing(KeyError("x")), 2))
    assert (type(refused), type(bug)) == (InvalidRequest, KeyError)


async def test_closed_worker_refuses_work_and_forgets_its_callers():
    worker = SharedWorker("work")
    assert await worker.call("a", lambda: 3) == 3
    worker.close()
    with pytest.raises(ShuttingDown):
        await worker.run("a", steps("x", 1, []), LONG)
    assert not worker._locks
