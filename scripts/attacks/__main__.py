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
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from rerank.v1 import rerank_pb2 as pb
from scripts.attacks.table import ATTACKS, run_attack
from scripts.attacks.target import Target
from scripts.random_requests import random_request
from scripts.service import Service, running_service

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
    *("attack", "p50 / p99 without (ms)", "p50 / p99 with (ms)", "refused"),
    *("growth (MB)", "log (MB)", "load", "calls of the attack"),
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Option(help="An attack to run; none: all of them. Repeatable.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure, without the attack and at least with it.")] = 8.0,
) -> None:
    """Attack the service, and print a row for each attack; `load` is the machine's, of the last minute."""
    if unknown := set(only or ()) - ATTACKS.keys():
        raise ConfigError(f"no attack {', '.join(sorted(unknown))}: choose from {', '.join(ATTACKS)}")
    print(f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}")
    for name in only or ATTACKS:
        print(f"| {name} | {' | '.join(asyncio.run(measure(name, seconds)))} |", flush=True)


async def measure(name: str, seconds: float) -> list[str]:
    """The cells of an attack: the honest caller of a fresh service alone and beside it, and what else was observed."""
    attack = ATTACKS[name]
    with tempfile.TemporaryDirectory(prefix="attack-") as created:
        folder = Path(created)
        with (
            attack.prepare(folder) if attack.prepare else nullcontext({}) as further,
            running_service(_with(further), attack.open_files) as service,
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker,  # another GIL
        ):
            addresses = (service.address, service.http_address, service.metrics_address)
            async with Target(*addresses) as target:
                return await _beside(
                    lambda: attacker.submit(run_attack, name, *addresses, folder), target, service, seconds
                )


def _with(further: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the settings that an attack needs to the usual ones."""
    models = [*_SETTINGS["models"], *further.get("models", ())]
    return {**_SETTINGS, **_METRICS, **further, "models": models}


async def _beside(attack: Callable[[], Any], target: Target, service: Service, seconds: float) -> list[str]:
    """Warms the service up, and measures for `seconds` without the attack, then until it has ended."""
    draw = random.Random(1)
    for _ in range(_WARM_UP):
        await target.rerank(random_request(draw, "pe-rank", passages=20, characters=300), _TIMEOUT_S)
    ten = random_request(draw, "pe-rank", passages=10, characters=300)
    alone, beside = Honest(target, ten), Honest(target, ten)
    async with alone:
        await asyncio.sleep(seconds)
    before_mb, log_before_mb, growth_mb = service.resident_mb(), service.log_mb(), 0.0
    start_s, attacking = time.perf_counter(), asyncio.wrap_future(attack())
    async with beside:
        while not attacking.done() or time.perf_counter() < start_s + seconds:
            growth_mb = max(growth_mb, service.resident_mb() - before_mb)
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(_AFTERMATH_S)
    refused = f"{beside.failed.total()} of {len(beside.latency_ms)}"
    return [
        *(alone.times(), beside.times()),
        f"{refused} ({_counts(beside.failed)})" if beside.failed else refused,
        *(f"{growth_mb:.0f}", f"{service.log_mb() - log_before_mb:.2f}", f"{os.getloadavg()[0]:.1f}"),
        _counts(attacking.result()),
    ]


class Honest:
    """A caller that sends a request again and again, inside an `async with` block.

    Attributes:
        latency_ms: of each call.
        failed: the statuses of the calls that failed.
    """

    def __init__(self, target: Target, message: pb.RerankRequest) -> None:
        self.latency_ms: list[float] = []
        self.failed = Counter[str]()
        self._target, self._message, self._has_ended = target, message, asyncio.Event()

    async def __aenter__(self) -> None:
        self._calling = asyncio.create_task(self._call())

    async def __aexit__(self, *_: object) -> None:
        self._has_ended.set()
        await self._calling

    async def _call(self) -> None:
        while not self._has_ended.is_set():
            start_s = time.perf_counter()
            outcome = await self._target.rerank(self._message, _TIMEOUT_S)
            self.latency_ms.append((time.perf_counter() - start_s) * 1000)
            if outcome != "OK":
                self.failed[outcome] += 1
            await asyncio.sleep(_PAUSE_S)

    def times(self) -> str:
        """The median and the 99th percentile."""
        ms = self.latency_ms
        p99 = quantiles(ms, n=100, method="inclusive")[98] if len(ms) > 1 else ms[0]
        return f"{median(ms):.0f} / {p99:.0f}"


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))


if __name__ == "__main__":
    run(app)
