"""Attacks on a running service, and what an honest caller beside each of them notices.

    python -m scripts.attacks [--only NAME]... [--seconds 10]

Each attack has a fresh `rerank serve`, and runs in another process. An honest caller sends ten passages to `pe-rank`
again and again: first alone, then during the attack and two seconds longer. The attack `nothing` shows what other
programs of the machine cost. docs/evidence/reliability.md has the figures.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from rerank.v1 import rerank_pb2 as pb
from scripts.attacks import files, grpc, http
from scripts.attacks.target import SERVICES, Attack, ServiceOf, Target, run_attack
from scripts.random_requests import random_request
from scripts.service import Service, running_service

#: The public coroutines of the modules of attacks, by name.
ATTACKS: dict[str, Attack] = {
    name.replace("_", "-"): attack
    for module in (grpc, http, files)
    for name, attack in vars(module).items()
    if getattr(attack, "__module__", "") == module.__name__ and iscoroutinefunction(attack) and not name.startswith("_")
}
_SETTINGS: dict[str, Any] = {
    "models": [{"name": name, "ranker": name} for name in ("identity", "pe-rank")]
    + [{"name": "first", "ranker": "first", "load": "request"}]
    + [{"name": "default", "ranker": "fusion", "load": "request"}]
}
_METRICS: dict[str, object] = {"telemetry": {"metrics": "127.0.0.1:0"}}
#: Requests that warm a model up.
_WARM_UP = 3
#: Seconds between an answer to the honest caller and its next request; and until it gives an answer up.
_PAUSE_S, _TIMEOUT_S = 0.01, 60.0
#: Seconds to go on measuring after the last call of the attack has ended.
_AFTERMATH_S = 2.0
_POLL_S = 0.05

_COLUMNS = (
    "attack",
    "p50 / p99 without (ms)",
    "p50 / p99 with (ms)",
    "refused",
    "growth (MB)",
    "log (MB)",
    "load",
    "calls of the attack",
)
HEADER = f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Option(help="An attack to run; none: all of them. Repeatable.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure, without the attack and at least with it.")] = 8.0,
) -> None:
    """Attack the service, and print a row for each attack; `load` is the machine's, of the last minute."""
    if unknown := set(only or ()) - ATTACKS.keys():
        raise ConfigError(f"no attack {', '.join(sorted(unknown))}: choose from {', '.join(ATTACKS)}")
    print(HEADER)
    for name in only or ATTACKS:
        print(asyncio.run(measure(name, seconds)).row(name), flush=True)


async def measure(name: str, seconds: float) -> Report:
    """Measures an honest caller of a fresh service, alone and during an attack."""
    attack = ATTACKS[name]
    served = SERVICES.get(attack, ServiceOf())
    with tempfile.TemporaryDirectory(prefix="attack-") as created:
        folder = Path(created)
        with (
            served.prepare(folder) if served.prepare else nullcontext({}) as further,
            running_service(_with(further), served.open_files) as service,
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker,  # another GIL
        ):
            loop = asyncio.get_running_loop()
            target = (service.address, service.http_address, service.metrics_address, folder)
            return await probe_while(
                lambda: loop.run_in_executor(attacker, run_attack, attack, *target), service, seconds
            )


def _with(further: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the settings that an attack needs to the usual ones."""
    models = [*_SETTINGS["models"], *further.get("models", ())]
    return {**_SETTINGS, **_METRICS, **further, "models": models}


@dataclass
class Honest:
    """The honest caller's latencies in milliseconds, and the statuses of the calls that failed."""

    latency_ms: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        times = self.latency_ms
        p99 = quantiles(times, n=100, method="inclusive")[98] if len(times) > 1 else times[0]
        return f"{median(times):.0f} / {p99:.0f}"


@dataclass
class Report:
    """The honest caller without and with the attack, and what else was observed during it."""

    without: Honest
    during: Honest
    growth_mb: float
    log_mb: float
    calls: Counter[str]

    def row(self, name: str) -> str:
        """The row of the table under HEADER."""
        failed = f"{self.during.failed.total()} of {len(self.during.latency_ms)}"
        cells = (
            name,
            str(self.without),
            str(self.during),
            f"{failed} ({_counts(self.during.failed)})" if self.during.failed else failed,
            f"{self.growth_mb:.0f}",
            f"{self.log_mb:.2f}",
            f"{os.getloadavg()[0]:.1f}",
            _counts(self.calls),
        )
        return f"| {' | '.join(cells)} |"


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))


async def probe_while(attack: Callable[[], Awaitable[Counter[str]]], service: Service, seconds: float) -> Report:
    """Warms the service up, and measures for `seconds` without the attack, then until it has ended."""
    draw = random.Random(1)
    ten = random_request(draw, "pe-rank", passages=10, characters=300)
    async with Target(service.address, service.http_address) as target:
        for _ in range(_WARM_UP):
            await target.rerank(random_request(draw, "pe-rank", passages=20, characters=300), _TIMEOUT_S)
        without, has_ended = Honest(), asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, has_ended.set)
        await _one_after_another(target, ten, without, has_ended)
        before_mb, log_before_mb, growth_mb = service.resident_mb(), service.log_mb(), 0.0
        start_s, during, has_ended = time.perf_counter(), Honest(), asyncio.Event()
        attacking = asyncio.ensure_future(attack())
        calling = asyncio.create_task(_one_after_another(target, ten, during, has_ended))
        while not attacking.done() or time.perf_counter() < start_s + seconds:
            growth_mb = max(growth_mb, service.resident_mb() - before_mb)
            await asyncio.sleep(_POLL_S)
        calls = await attacking
        await asyncio.sleep(_AFTERMATH_S)
        has_ended.set()
        await calling
    return Report(without, during, growth_mb, service.log_mb() - log_before_mb, calls)


async def _one_after_another(target: Target, message: pb.RerankRequest, honest: Honest, ended: asyncio.Event) -> None:
    """The honest caller, until the event is set."""
    while not ended.is_set():
        start_s = time.perf_counter()
        outcome = await target.rerank(message, _TIMEOUT_S)
        honest.latency_ms.append((time.perf_counter() - start_s) * 1000)
        if outcome != "OK":
            honest.failed[outcome] += 1
        await asyncio.sleep(_PAUSE_S)


if __name__ == "__main__":
    run(app)
