"""Attacks on a running service: the latency of other requests, health checks, memory and log during each.

    python -m scripts.attacks [NAME …] [--seconds 10]

Each attack has a fresh `rerank serve`, and runs in another process. Meanwhile probes are sent at a fixed rate, whether
or not earlier ones were answered: short requests to `identity` and to `first`, and health checks. An honest caller
sends ten passages to `pe-rank` again and again. The attack `nothing` shows what they see of an idle service.
docs/evidence/reliability.md has the figures.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from statistics import median, quantiles
from typing import Annotated

import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from rerank.v1 import rerank_pb2 as pb
from scripts.attacks import grpc, http
from scripts.attacks.target import Attack, Target, run_attack
from scripts.random_requests import random_request
from scripts.service import Service, running_service

#: The public coroutines of the modules of attacks, by name.
ATTACKS: dict[str, Attack] = {
    name.replace("_", "-"): attack
    for module in (grpc, http)
    for name, attack in vars(module).items()
    if getattr(attack, "__module__", "") == module.__name__ and iscoroutinefunction(attack) and not name.startswith("_")
}
_SETTINGS: dict[str, object] = {
    "models": [{"name": name, "ranker": name} for name in ("identity", "pe-rank", "first")]
    + [{"name": "default", "ranker": "fusion"}]
}
_METRICS: dict[str, object] = {"telemetry": {"metrics": "127.0.0.1:0"}}
#: Seconds between two probes of a kind; FIRST's are rarer where they would take more than a third of a core.
_INTERVAL_S = {"identity": 0.1, "first": 1.0, "health": 0.05, "http": 0.1}
_MAX_SHARE = 1 / 3
#: Seconds between an answer to the honest caller and its next request.
_PAUSE_S = 0.01
#: A probe that takes longer is given up and counts with this latency.
_TIMEOUT_S = 60.0
#: Seconds to go on measuring after the last call of the attack has ended.
_AFTERMATH_S = 2.0
_POLL_S = 0.05

_COLUMNS = (
    "attack",
    *(f"{kind} p50/p99/max (ms)" for kind in ("honest", *_INTERVAL_S)),
    "unanswered",
    "growth (MB)",
    "log (MB/min)",
    "calls of the attack",
)
HEADER = f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help="Attacks to run; none: all of them.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure at least, from the start of the attack.")] = 15.0,
) -> None:
    """Attack the service, and print a row for each attack."""
    if unknown := set(names or ()) - ATTACKS.keys():
        raise ConfigError(f"no attack {', '.join(sorted(unknown))}: choose from {', '.join(ATTACKS)}")
    print(HEADER)
    for name in names or ATTACKS:
        print(asyncio.run(measure(name, seconds)).row(name), flush=True)


async def measure(name: str, seconds: float) -> Report:
    """The latencies of a fresh service during one attack."""
    open_files = http.OPEN_FILES if ATTACKS[name] in http.ON_FEW_FILES else None
    with (
        running_service(_SETTINGS | _METRICS, open_files) as service,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker,  # another GIL
    ):
        loop, target = asyncio.get_running_loop(), (service.address, service.http_address, service.metrics_address)
        return await probe_while(
            lambda: loop.run_in_executor(attacker, run_attack, ATTACKS[name], *target), service, seconds
        )


@dataclass
class Report:
    """Latencies of the probes in milliseconds by kind, and what else was observed during the attack."""

    latency_ms: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in ("honest", *_INTERVAL_S)})
    unanswered: Counter[str] = field(default_factory=Counter)
    growth_mb: float = 0.0
    log_mb_per_min: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)

    def row(self, name: str) -> str:
        """The row of the table under HEADER."""
        cells = (
            name,
            *(f"{median(times):.0f}/{_p99(times):.0f}/{max(times):.0f}" for times in self.latency_ms.values()),
            _counts(self.unanswered) or "0",
            f"{self.growth_mb:.0f}",
            f"{self.log_mb_per_min:.2f}",
            _counts(self.calls),
        )
        return f"| {' | '.join(cells)} |"


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


async def probe_while(attack: Callable[[], Awaitable[Counter[str]]], service: Service, seconds: float) -> Report:
    """Warms the service up, starts the attack, and probes until it has ended, for at least `seconds`."""
    draw, report = random.Random(1), Report()
    short = {kind: random_request(draw, kind, passages=5, characters=200) for kind in ("identity", "first")}
    ten = random_request(draw, "pe-rank", passages=10, characters=300)
    async with Target(service.address, service.http_address) as target:
        for model in ("identity", "first", "pe-rank"):
            for _ in range(3):
                await target.rerank(random_request(draw, model, passages=20, characters=300), _TIMEOUT_S)
        alone_s = await _alone_s(partial(_rerank, target, short["first"]))
        interval_s = _INTERVAL_S | {"first": max(_INTERVAL_S["first"], alone_s / _MAX_SHARE)}
        before_mb, log_before_mb = service.resident_mb(), service.log_mb()
        start_s = time.perf_counter()
        attacking = asyncio.ensure_future(attack())
        probes: dict[str, Callable[[], Awaitable[str]]] = {
            **{kind: partial(_rerank, target, message) for kind, message in short.items()},
            "health": partial(target.health, _TIMEOUT_S),
            "http": partial(target.http_rerank, _TIMEOUT_S),
        }
        has_ended = asyncio.Event()
        tasks = [
            asyncio.create_task(_at_a_rate(kind, probe, report, interval_s[kind], has_ended))
            for kind, probe in probes.items()
        ]
        tasks.append(asyncio.create_task(_one_after_another(partial(_rerank, target, ten), report, has_ended)))
        while not attacking.done() or time.perf_counter() < start_s + seconds:
            report.growth_mb = max(report.growth_mb, service.resident_mb() - before_mb)
            await asyncio.sleep(_POLL_S)
        report.calls = await attacking
        await asyncio.sleep(_AFTERMATH_S)
        has_ended.set()
        await asyncio.gather(*tasks)
        report.log_mb_per_min = (service.log_mb() - log_before_mb) / (time.perf_counter() - start_s) * 60
    return report


async def _rerank(target: Target, message: pb.RerankRequest) -> str:
    return await target.rerank(message, _TIMEOUT_S)


async def _alone_s(send: Callable[[], Awaitable[str]]) -> float:
    """The median latency of three requests, one after the other."""
    report = Report()
    for _ in range(3):
        await _timed("honest", send, report)
    return median(report.latency_ms["honest"]) / 1000


async def _timed(kind: str, send: Callable[[], Awaitable[str]], report: Report) -> None:
    start_s = time.perf_counter()
    outcome = await send()
    report.latency_ms[kind].append((time.perf_counter() - start_s) * 1000)
    if outcome != "OK":
        report.unanswered[f"{kind} {outcome}"] += 1


async def _at_a_rate(
    kind: str, probe: Callable[[], Awaitable[str]], report: Report, interval_s: float, has_ended: asyncio.Event
) -> None:
    """Sends a probe in each interval until the attack has ended; then waits for the answers to those that were sent."""
    async with asyncio.TaskGroup() as sent:
        while not has_ended.is_set():
            sent.create_task(_timed(kind, probe, report))
            await asyncio.sleep(interval_s)


async def _one_after_another(send: Callable[[], Awaitable[str]], report: Report, has_ended: asyncio.Event) -> None:
    """The honest caller, until the attack has ended."""
    while not has_ended.is_set():
        await _timed("honest", send, report)
        await asyncio.sleep(_PAUSE_S)


if __name__ == "__main__":
    run(app)
