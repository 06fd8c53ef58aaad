"""Overload: goodput, latency and refusals at multiples of the capacity, and how soon the service recovers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

from attacks.server import running_service

from rerank.access.credentials import PLAIN
from rerank.load_test.open_loop import Call, LoadReport, capacity, open_loop, poisson_arrivals
from rerank.load_test.requests import made_request, rerank_calls

HEADER = """| load | offered (1/s) | goodput (1/s) | of capacity | p50 (ms) | p99 (ms) | refused | late | no RetryInfo |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""

_CALLERS = 8
_DEADLINE_S = 2.0
#: The service is back to normal when an answer takes at most so many times as long as one before the load.
_NORMAL = 2.0
_RECOVERY_S = 10.0


async def overload(model: str, passages: int, seconds: float, seed: int) -> AsyncIterator[str]:
    """Lines of a table: 1x without deadlines, then 1x, 2x and 4x of the capacity with deadlines of 2 s."""
    draw = random.Random(seed)
    messages = [made_request(draw, model, passages, 300) for _ in range(50)]
    with running_service() as service:
        async with (
            rerank_calls(service.address, PLAIN, messages, None) as patient,
            rerank_calls(service.address, PLAIN, messages, _DEADLINE_S) as hasty,
        ):
            calm_s = min([await _seconds(patient) for _ in range(10)])
            rate = await capacity(patient, _CALLERS, seconds)
            yield f"capacity {rate:.1f}/s with {_CALLERS} callers; a request alone takes {calm_s * 1000:.0f} ms\n"
            yield HEADER
            for name, factor, call in [
                ("1x, no deadline", 1.0, patient),
                ("1x", 1.0, hasty),
                ("2x", 2.0, hasty),
                ("4x", 4.0, hasty),
            ]:
                report = await open_loop(call, poisson_arrivals(factor * rate, seconds, draw), seconds)
                recovered_s = await _recovery(hasty, calm_s)
                yield _row(name, report, rate)
            yield f"\nnormal {recovered_s:.1f} s after the last answer to the 4x load"


async def _seconds(call: Call) -> float:
    start_s = time.perf_counter()
    outcome = await call(0)
    return time.perf_counter() - start_s if outcome.status == "OK" else float("inf")


async def _recovery(call: Call, calm_s: float) -> float:
    """Seconds until the service answers about as fast as before the load; infinite if it does not within ten."""
    start_s = time.perf_counter()
    while time.perf_counter() < start_s + _RECOVERY_S:
        if await _seconds(call) <= _NORMAL * calm_s:
            return time.perf_counter() - start_s
        await asyncio.sleep(0.05)
    return float("inf")


def _row(name: str, report: LoadReport, rate: float) -> str:
    statuses = report.statuses
    cells = [
        name,
        f"{len(report.calls) / report.seconds:.1f}",
        f"{report.goodput:.1f}",
        f"{report.goodput / rate:.0%}",
        f"{report.percentile_ms(50):.0f}",
        f"{report.percentile_ms(99):.0f}",
        str(statuses["RESOURCE_EXHAUSTED"]),
        str(statuses["DEADLINE_EXCEEDED"]),
        str(report.refusals_without_retry_info),
    ]
    others = statuses.total() - sum(statuses[each] for each in ("OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"))
    return f"| {' | '.join(cells)} |" + (f" and {others} others" if others else "")
