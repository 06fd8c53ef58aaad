"""Attacks on a running service: latency of other requests and of health checks, growth of memory, and log, in each.

Starts the service with its default models as a process of its own, warms it up, and lets another process attack it over
a socket. Meanwhile short requests (five short passages, ranked by identity and by FIRST) and health checks are sent at
a fixed rate, by which FIRST takes a third of a core at most, whether or not earlier ones were answered. An honest
caller sends ten passages to pe-rank again and again. The attack `nothing` shows what they notice on an idle service.

The folder of a hostile cross-encoder is no row here: the service refuses it when it starts, so that there is nothing to
measure. tests/rerank/checkpoints/test_known_classes.py tries it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.errors import ConfigError
from scripts.service import running_service
from scripts.trials.attacks import (  # noqa: F401  (register their attacks)
    connections,
    documents,
    engine,
    http,
    keys,
    memory,
    servers,
)
from scripts.trials.attacks.registry import ATTACKS, ENCRYPTED, MAX_CALLS, SETTINGS
from scripts.trials.calls import Target
from scripts.trials.options import Seed
from scripts.trials.probes import Report, probe_while
from scripts.trials.table import header

HEADER = header(
    *(
        "attack",
        "honest p50/p99/max (ms)",
        "identity p50/p99/max (ms)",
        "default model p50/p99/max (ms)",
        "health p50/p99/max (ms)",
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
        _keys(name) as (settings, own_key, key),
        running_service({**SETTINGS.get(name, {}), **settings}, encrypted=name in ENCRYPTED) as service,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker,  # its own GIL
    ):
        loop = asyncio.get_running_loop()
        target = service.address, service.http_address, service.authority, key
        return await probe_while(
            lambda: loop.run_in_executor(attacker, run_attack, name, *target, seed), service, seconds, own_key
        )


@contextmanager
def _keys(name: str) -> Iterator[tuple[dict[str, object], str, str]]:
    """Settings of the service with API keys, the probes' key and the attacker's; empty for an attack without a key."""
    if name not in MAX_CALLS:
        yield {}, "", ""
        return
    with tempfile.TemporaryDirectory(prefix="rerank-trial-") as folder:
        file = Path(folder) / "keys.yaml"
        own_key = add_key(file, "honest", CallerLimits())
        yield {"keys": str(file)}, own_key, add_key(file, "attacker", CallerLimits(max_calls=MAX_CALLS[name]))


def run_attack(
    name: str, address: str, http_address: str, authority: bytes | None, key: str, seed: int
) -> Counter[str]:
    """Runs an attack on a service, with the arguments of Target; for a process of its own."""

    async def run() -> Counter[str]:
        async with Target(address, http_address, authority, key) as target:
            return await ATTACKS[name](target, random.Random(seed))

    return asyncio.run(run())
