"""Registry of the attacks: each is a coroutine function, registered under its name by the decorator `attack`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from scripts.trials.calls import Target

#: Runs an attack until it ends; returns how often its calls ended in which way, such as {"OK": 3, "CANCELLED": 1}.
Attack: TypeAlias = Callable[[Target, random.Random], Awaitable[Counter[str]]]

ATTACKS: dict[str, Attack] = {}
#: The attacks on a service with TLS.
ENCRYPTED: set[str] = set()


def attack(function: Attack) -> Attack:
    """Registers an attack under its function's name, with hyphens."""
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


def attack_with_tls(function: Attack) -> Attack:
    """Registers an attack on a service with TLS."""
    ENCRYPTED.add(function.__name__.replace("_", "-"))
    return attack(function)
