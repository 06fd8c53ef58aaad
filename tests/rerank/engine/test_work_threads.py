"""The threads for work on texts: others take their turns between slices, and it ends with its reranker."""

from __future__ import annotations

import asyncio
import time
from itertools import groupby
from typing import Any

import pytest

from rerank.engine.work_threads import WorkThreads
from rerank.errors import InvalidRequest, RankerFailure, ShuttingDown
from rerank.types import InSlices

SLICE_S = 0.02  # longer than a slice lasts, so that there is one step in each
LONG = 1000.0


def steps(name: str, number: int, done: list[str]) -> InSlices[str]:
    for _ in range(number):
        time.sleep(SLICE_S)
        done.append(name)
        yield
    return name


def with_thread(*works: tuple[str, InSlices[Any], float]) -> list[Any]:
    """The results of work of these callers, which comes in this order, and is expected to take so many ms."""

    async def run() -> list[Any]:
        thread = WorkThreads(age_factor=0.05)
        thread.open()
        try:
            running = [asyncio.create_task(thread.run(*work)) for work in works]
            return await asyncio.gather(*running, return_exceptions=True)
        finally:
            await thread.close()

    return asyncio.run(run())


def test_short_work_of_another_caller_runs_between_the_slices_of_long_work() -> None:
    done = list[str]()
    works = [(f"caller {n}", steps("long", 10, done), LONG) for n in range(4)]
    assert with_thread(*works, ("honest", steps("short", 1, done), 1)) == [*["long"] * 4, "short"]
    assert done.index("short") <= 2, "it waits for no more than what runs or was chosen"
    assert len(done) == 41


def test_callers_have_equal_shares_of_the_thread() -> None:
    done = list[str]()
    many = [("many", steps("many", 6, done), LONG) for _ in range(5)]
    with_thread(*many, ("one", steps("one", 6, done), LONG))
    assert done[:12].count("one") in (5, 6)


def test_short_work_asked_for_again_and_again_never_waits_for_the_end_of_long_work() -> None:
    done = list[str]()

    async def run() -> None:
        thread = WorkThreads(age_factor=0.05)
        thread.open()
        long = [asyncio.create_task(thread.run(f"caller {n}", steps("long", 30, done), 100)) for n in range(3)]
        while not all(each.done() for each in long):
            await thread.run("honest", steps("short", 0, []), 1)
            done.append("short")
        await thread.close()

    asyncio.run(run())
    assert max(len(list(group)) for name, group in groupby(done) if name == "long") <= 4


def test_cancelled_work_runs_no_further_slice() -> None:
    done = list[str]()

    async def run() -> None:
        thread = WorkThreads(age_factor=0.05)
        thread.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5 * SLICE_S):
                await thread.run("a", steps("late", 1000, done), LONG)
        so_far = len(done)
        await asyncio.sleep(4 * SLICE_S)
        assert len(done) <= so_far + 1
        await thread.close()

    asyncio.run(run())


def test_errors_are_those_of_the_work_and_others_are_bugs() -> None:
    def failing(error: Exception) -> InSlices[None]:
        yield
        raise error

    refused, bug = with_thread(("a", failing(InvalidRequest("query", "no")), 1), ("b", failing(KeyError("x")), 1))
    assert isinstance(refused, InvalidRequest)
    assert isinstance(bug, RankerFailure)
    assert "this is a bug" in str(bug)


def test_search_waits_for_no_other_work_and_raises_its_errors_as_they_are() -> None:
    done = list[str]()

    def fail() -> None:
        done.append("search")
        raise KeyError("x")

    async def run() -> None:
        thread = WorkThreads(age_factor=0.05)
        thread.open()
        long = asyncio.create_task(thread.run("a", steps("long", 20, done), LONG))
        await asyncio.sleep(SLICE_S)
        with pytest.raises(KeyError):
            await thread.search("b", fail)
        assert await thread.call("b", lambda: 3) == 3
        assert not long.done()
        await long
        await thread.close()

    asyncio.run(run())
    assert done.count("long") == 20


def test_whole_functions_of_one_caller_leave_others_their_shares() -> None:
    """Each counts as 50 ms. Had it counted as nothing, large messages would have kept long documents waiting."""
    done = list[str]()

    async def run() -> None:
        thread = WorkThreads(age_factor=0.05)
        thread.open()
        long = asyncio.create_task(thread.run("a", steps("long", 10, done), 10.0 * 20))
        calls = [asyncio.create_task(thread.call("b", lambda: done.append("whole"))) for _ in range(100)]
        await long
        assert not all(each.done() for each in calls)
        await asyncio.gather(*calls)
        await thread.close()

    asyncio.run(run())


def test_closed_thread_refuses_work() -> None:
    async def run() -> None:
        thread = WorkThreads(age_factor=0.05)
        thread.open()
        await thread.close()
        with pytest.raises(ShuttingDown):
            await thread.run("a", steps("x", 1, []), 1)

    asyncio.run(run())
