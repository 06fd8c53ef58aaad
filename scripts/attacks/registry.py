"""Registry of the attacks: each is a coroutine function, registered under its name by the decorator `attack`."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from attacks.calls import Target

#: Runs an attack until it ends; returns how often its calls ended in which way, such as {"OK": 3, "CANCELLED": 1}.
Attack: TypeAlias = Callable[[Target, random.Random], Awaitable[Counter[str]]]

ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Registers an attack under its function's name, with hyphens."""
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


def run_attack(name: str, address: str, seed: int) -> Counter[str]:
    """Runs an attack on the service at `address`; for a process of its own."""
    from attacks import connections, engine, memory  # noqa: F401  (register their attacks in that process)

    async def run() -> Counter[str]:
        async with Target(address) as target:
            return await ATTACKS[name](target, random.Random(seed))

    return asyncio.run(run())
