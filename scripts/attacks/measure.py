"""Each attack has a fresh service, and runs in a separate process."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from inspect import iscoroutinefunction

from scripts.attacks import connections, engine, grpc_calls, http, memory
from scripts.attacks.probes import Report, probe_while
from scripts.attacks.target import Attack, Target
from scripts.service import running_service

#: The public coroutines of the modules of attacks, by name.
ATTACKS: dict[str, Attack] = {
    name.replace("_", "-"): attack
    for module in (engine, memory, grpc_calls, http, connections)
    for name, attack in vars(module).items()
    if getattr(attack, "__module__", "") == module.__name__ and iscoroutinefunction(attack) and not name.startswith("_")
}
_SETTINGS: dict[str, object] = {
    "models": [{"name": name, "ranker": name} for name in ("identity", "pe-rank", "first")]
    + [{"name": "default", "ranker": "fusion"}],
    "http": "127.0.0.1:0",
}
_METRICS: dict[str, object] = {"telemetry": {"metrics": "127.0.0.1:0"}}


async def measure(name: str, seconds: float) -> Report:
    """The latencies of a fresh service during one attack."""
    open_files = connections.OPEN_FILES if ATTACKS[name].__module__ == connections.__name__ else None
    with (
        running_service(_SETTINGS | _METRICS, open_files) as service,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attacker,  # another GIL
    ):
        loop, target = asyncio.get_running_loop(), (service.address, service.http_address, service.metrics_address)
        return await probe_while(lambda: loop.run_in_executor(attacker, run_attack, name, *target), service, seconds)


def run_attack(name: str, *addresses: str) -> Counter[str]:
    """Runs an attack on a service with these addresses, see Target; for a separate process."""

    async def run() -> Counter[str]:
        async with Target(*addresses) as target:
            return await ATTACKS[name](target)

    return asyncio.run(run())
