"""Probes: what other callers ask during an attack, and the report of their latencies.

Short requests and health checks are sent at a fixed rate. The honest caller sends ten passages to pe-rank again and
again, each time as soon as it has the answer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.open_loop import percentile
from scripts.load_test.requests import made_request
from scripts.service import Service
from scripts.trials.calls import Target
from scripts.trials.table import counts, row

#: Seconds between two probes of a kind; those of FIRST are rarer where they would take more than a third of a core.
_INTERVAL_S = {"identity": 0.1, "default": 1.0, "health": 0.05}
_MAX_SHARE = 1 / 3
#: Seconds between an answer to the honest caller and its next request.
_PAUSE_S = 0.01
#: A probe that takes longer is given up and counts with this latency.
_TIMEOUT_S = 60.0
#: Seconds to go on measuring after the last call of the attack has ended.
_AFTERMATH_S = 2.0
_POLL_S = 0.05


@dataclass
class Report:
    """Latencies of the probes in milliseconds by kind, and what else was observed during the attack."""

    latency_ms: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in _INTERVAL_S})
    honest_ms: list[float] = field(default_factory=list)
    unanswered: int = 0
    growth_mb: float = 0.0
    log_mb_per_min: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)

    def row(self, name: str) -> str:
        """The row of the table; see HEADER in attack.py."""
        latency_ms = [
            f"{median(values):.0f}/{percentile(values, 99):.0f}/{max(values):.0f}"
            for values in (self.honest_ms, *self.latency_ms.values())
        ]
        growth = f"{self.growth_mb:.0f}", f"{self.log_mb_per_min:.2f}"
        return row(name, *latency_ms, self.unanswered, *growth, counts(self.calls))


async def probe_while(
    attack: Callable[[], Awaitable[Counter[str]]], service: Service, seconds: float, key: str = ""
) -> Report:
    """Warms the service up, starts the attack, and probes until it has ended, for at least `seconds`.

    Args:
        key: the API key of the probes; empty for a service without keys.
    """
    draw, report = random.Random(1), Report()
    short = {kind: made_request(draw, kind, passages=5, characters=200) for kind in ("identity", "default")}
    ten = made_request(draw, "pe-rank", passages=10, characters=300)
    async with Target(service.address, authority=service.authority, key=key) as target:
        for model in ("identity", "default", "pe-rank"):
            for _ in range(3):
                await target.rerank(made_request(draw, model, passages=20, characters=300), _TIMEOUT_S)
        interval_s = {
            **_INTERVAL_S,
            "default": max(_INTERVAL_S["default"], await _alone_s(target, short["default"]) / _MAX_SHARE),
        }
        before_mb, log_before_mb = service.resident_mb(), service.log_mb()
        start_s = time.perf_counter()
        attacking = asyncio.ensure_future(attack())
        probes: dict[str, Callable[[], Awaitable[str]]] = {
            **{kind: partial(_rerank, target, message) for kind, message in short.items()},
            "health": partial(target.health, _TIMEOUT_S),
        }
        tasks = [asyncio.create_task(_probe(kind, probe, report, interval_s[kind])) for kind, probe in probes.items()]
        has_ended = asyncio.Event()
        honest = asyncio.create_task(_ask_again_and_again(partial(_rerank, target, ten), report, has_ended))
        while not attacking.done() or time.perf_counter() < start_s + seconds:
            report.growth_mb = max(report.growth_mb, service.resident_mb() - before_mb)
            await asyncio.sleep(_POLL_S)
        report.calls = await attacking
        await asyncio.sleep(_AFTERMATH_S)
        has_ended.set()
        await honest
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        report.log_mb_per_min = (service.log_mb() - log_before_mb) / (time.perf_counter() - start_s) * 60
    return report


async def _rerank(target: Target, message: pb.RerankRequest) -> str:
    return await target.rerank(message, _TIMEOUT_S)


async def _alone_s(target: Target, message: pb.RerankRequest) -> float:
    """The median latency of three requests, one after the other."""
    latencies_s = []
    for _ in range(3):
        start_s = time.perf_counter()
        await _rerank(target, message)
        latencies_s.append(time.perf_counter() - start_s)
    return median(latencies_s)


async def _probe(kind: str, probe: Callable[[], Awaitable[str]], report: Report, interval_s: float) -> None:
    """Sends a probe in each interval until cancelled; then waits for the answers to those that were sent."""

    async def send() -> None:
        start_s = time.perf_counter()
        outcome = await probe()
        report.latency_ms[kind].append((time.perf_counter() - start_s) * 1000)
        report.unanswered += outcome != "OK"

    sent: list[asyncio.Task[None]] = []
    try:
        while True:
            sent.append(asyncio.create_task(send()))
            await asyncio.sleep(interval_s)
    finally:
        await asyncio.gather(*sent)


async def _ask_again_and_again(ask: Callable[[], Awaitable[str]], report: Report, has_ended: asyncio.Event) -> None:
    """The honest caller, until the attack has ended."""
    while not has_ended.is_set():
        start_s = time.perf_counter()
        outcome = await ask()
        report.honest_ms.append((time.perf_counter() - start_s) * 1000)
        report.unanswered += outcome != "OK"
        await asyncio.sleep(_PAUSE_S)
