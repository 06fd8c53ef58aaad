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
from concurrent.futures import ProcessPoolExecutor
from inspect import iscoroutinefunction
from typing import Annotated

import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from scripts.attacks import grpc, http
from scripts.attacks.probes import HEADER, Report, probe_while
from scripts.attacks.target import Attack, run_attack
from scripts.service import running_service

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


if __name__ == "__main__":
    run(app)
