"""Attacks on a running service: latency of other requests and of health checks, growth of memory, and log, in each.

    python scripts/attack.py --attack all

Starts the service with its default models as a process of its own, warms it up, and lets another process attack it over
a socket. Meanwhile short requests (five short passages, ranked by identity and by FIRST) and health checks are sent at
a fixed rate, by which FIRST takes a third of a core at most, whether or not earlier ones were answered. The attacks are
in scripts/attacks/.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated

import typer
from attacks import connections, engine, http, memory  # noqa: F401  (register their attacks)
from attacks.probes import Report, probe_while
from attacks.registry import ATTACKS, ENCRYPTED, run_attack
from attacks.server import running_service

from rerank.commands.run import run
from rerank.errors import ConfigError

HEADER = (
    "| attack | identity p99 (ms) | FIRST p99 (ms) | health p99 (ms) | unanswered | growth (MB) | log (MB/min) "
    "| calls of the attack |"
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    attack: Annotated[str, typer.Option(help=f"all, or some of {','.join(ATTACKS)}.")] = "all",
    seed: Annotated[int, typer.Option(help="Seed of the texts and intervals.")] = 0,
    seconds: Annotated[float, typer.Option(help="How long to measure at least, from the start of the attack.")] = 15.0,
) -> None:
    """Print a Markdown table with a row per attack."""
    names = list(ATTACKS) if attack == "all" else attack.split(",")
    if unknown := [name for name in names if name not in ATTACKS]:
        raise ConfigError(f"--attack {','.join(unknown)}: choose all, or some of {','.join(ATTACKS)}")
    print(HEADER)
    print("|".join(["", " --- ", *[" ---: "] * (HEADER.count("|") - 3), " --- ", ""]))
    for name in names:
        print(asyncio.run(measure(name, seed, seconds)).row(name), flush=True)


async def measure(name: str, seed: int, seconds: float) -> Report:
    """The latencies of a fresh service during one attack."""
    with (
        running_service(encrypted=name in ENCRYPTED) as service,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker,  # its own GIL
    ):
        loop = asyncio.get_running_loop()
        addresses = service.address, service.http_address, service.authority
        return await probe_while(
            lambda: loop.run_in_executor(attacker, run_attack, name, *addresses, seed), service, seconds
        )


if __name__ == "__main__":
    run(app)
