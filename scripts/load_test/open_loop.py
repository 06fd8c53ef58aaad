"""Open-loop load: calls that start at given times whether or not earlier ones were answered, and what became of them.

A closed loop, in which each client waits for its answer before it asks again, slows down with the service and so hides
how long requests wait ("coordinated omission"); here, a latency counts from the intended start of its call.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a call: the name of its gRPC status, and whether a refusal said when to try again (RetryInfo)."""

    status: str
    has_retry_info: bool = False


#: Makes the call with this number, 0, 1, …, and returns how it ended.
Call: TypeAlias = Callable[[int], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A call of an open loop. Its intended start is in seconds from the start of the loop."""

    start_s: float
    latency_s: float
    outcome: Outcome


@dataclass(frozen=True)
class LoadReport:
    """The calls of an open loop that lasted `seconds`, without the wait for the last answers."""

    calls: Sequence[TimedCall]
    seconds: float

    @property
    def statuses(self) -> Counter[str]:
        """Number of calls by status."""
        return Counter(call.outcome.status for call in self.calls)

    @property
    def goodput(self) -> float:
        """Answered calls per second. A call with a deadline is answered within it, or not at all."""
        return self.statuses["OK"] / self.seconds

    @property
    def refusals_without_retry_info(self) -> int:
        """Calls that ended in RESOURCE_EXHAUSTED and were not told when to try again."""
        outcomes = (call.outcome for call in self.calls)
        return sum(each.status == "RESOURCE_EXHAUSTED" and not each.has_retry_info for each in outcomes)

    def percentile_ms(self, percent: float, status: str = "OK") -> float:
        """The nearest-rank percentile of the latencies of calls with this status; NaN if there is none."""
        latencies = [call.latency_s for call in self.calls if call.outcome.status == status]
        return percentile(latencies, percent) * 1000 if latencies else float("nan")


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile, which is one of the values. There must be a value."""
    return sorted(values)[max(0, -int(-percent * len(values) // 100) - 1)]


def poisson_arrivals(rate: float, seconds: float, draw: random.Random) -> list[float]:
    """Times of the arrivals of independent callers, `rate` per second on average, in seconds from the start."""
    times: list[float] = []
    now_s = draw.expovariate(rate)
    while now_s < seconds:
        times.append(now_s)
        now_s += draw.expovariate(rate)
    return times


async def open_loop(call: Call, arrivals: Sequence[float], seconds: float) -> LoadReport:
    """Starts a call at each arrival, and returns when all have ended. `seconds` is the length for the report."""
    loop_start_s = time.perf_counter()

    async def timed(number: int, start_s: float) -> TimedCall:
        outcome = await call(number)
        return TimedCall(start_s, time.perf_counter() - loop_start_s - start_s, outcome)

    tasks: list[asyncio.Task[TimedCall]] = []
    for number, start_s in enumerate(arrivals):
        await asyncio.sleep(loop_start_s + start_s - time.perf_counter())
        tasks.append(asyncio.create_task(timed(number, start_s)))
    await asyncio.sleep(loop_start_s + seconds - time.perf_counter())
    return LoadReport(await asyncio.gather(*tasks), seconds)


async def capacity(call: Call, callers: int, seconds: float) -> float:
    """Answered calls per second of a closed loop: `callers` that each ask again as soon as they have an answer."""
    start_s, answered, number = time.perf_counter(), 0, 0

    async def ask_again_and_again() -> None:
        nonlocal answered, number
        while time.perf_counter() < start_s + seconds:
            number += 1
            outcome = await call(number - 1)
            answered += outcome.status == "OK"

    await asyncio.gather(*(ask_again_and_again() for _ in range(callers)))
    return answered / (time.perf_counter() - start_s)
