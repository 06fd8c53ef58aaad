"""Attacks on a running service: latency of other requests and of health checks, growth of memory, and log, in each.

Starts the service with its default models as a process of its own, warms it up, and lets another process attack it over
a socket. Meanwhile short requests (five short passages, ranked by identity and by FIRST) and health checks are sent at
a fixed rate, by which FIRST takes a third of a core at most, whether or not earlier ones were answered.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated

import typer

from rerank.errors import ConfigError
from scripts.trials.attacks import connections, engine, http, memory  # noqa: F401  (register their attacks)
from scripts.trials.attacks.registry import ATTACKS, ENCRYPTED
from scripts.trials.calls import Target
from scripts.trials.options import Seed
from scripts.trials.probes import Report, probe_while
from scripts.trials.service import running_service
from scripts.trials.table import header

HEADER = header(
    *(
        "attack",
        "identity p99 (ms)",
        "default model p99 (ms)",
        "health p99 (ms)",
        "unanswered",
        "growth (MB)",
        "log (MB/min)",
    ),
    "calls of the attack",
)


def attack(
    names: Annotated[str, typer.Argument(help=f"all, or some of {','.join(ATTACKS)}.")] = "all",
    seed: Seed = 0,
    seconds: Annotated[float, typer.Option(help="How long to measure at least, from the start of the attack.")] = 15.0,
) -> None:
    """Attacks the service, and measures what other callers notice of it."""
    chosen = list(ATTACKS) if names == "all" else names.split(",")
    if unknown := [name for name in chosen if name not in ATTACKS]:
        raise ConfigError(f"no attack {','.join(unknown)}: choose all, or some of {','.join(ATTACKS)}")
    print(HEADER)
    for name in chosen:
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


def run_attack(name: str, address: str, http_address: str, authority: bytes | None, seed: int) -> Counter[str]:
    """Runs an attack on a service, whose addresses are as in Target; for a process of its own."""

    async def run() -> Counter[str]:
        async with Target(address, http_address, authority) as target:
            return await ATTACKS[name](target, random.Random(seed))

    return asyncio.run(run())
