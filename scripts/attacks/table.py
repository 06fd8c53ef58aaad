"""All attacks by name, and how one runs in a process of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from scripts.attacks import files, grpc, http
from scripts.attacks.target import Target

ATTACKS = grpc.ATTACKS | http.ATTACKS | files.ATTACKS


def run_attack(name: str, address: str, http_address: str, metrics_address: str, folder: Path) -> Counter[str]:
    """Runs an attack on the service at these addresses, see Target, and returns how its calls ended."""

    async def attacked() -> Counter[str]:
        async with Target(address, http_address, metrics_address, folder) as target:
            return await ATTACKS[name].run(target)

    return asyncio.run(attacked())
