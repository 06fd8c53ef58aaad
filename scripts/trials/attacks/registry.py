"""Registry of the attacks: each is a coroutine function, registered under its name by the decorator `attack`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from scripts.trials.calls import Target

#: Runs an attack until it ends; returns how often its calls ended in which way, such as {"OK": 3, "CANCELLED": 1}.
Attack: TypeAlias = Callable[[Target, random.Random], Awaitable[Counter[str]]]

ATTACKS: dict[str, Attack] = {}
#: The attacks on a service with TLS.
ENCRYPTED: set[str] = set()
#: The attacks on a service with API keys, in which the attacker's key may have so many calls in flight.
MAX_CALLS: dict[str, int] = {}
#: The settings of the service where they are not the default ones.
SETTINGS: dict[str, Mapping[str, object]] = {}


def attack(function: Attack) -> Attack:
    """Registers an attack under its function's name, with hyphens."""
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


def attack_with_tls(function: Attack) -> Attack:
    """Registers an attack on a service with TLS."""
    ENCRYPTED.add(function.__name__.replace("_", "-"))
    return attack(function)


def attack_with_key(max_calls: int) -> Callable[[Attack], Attack]:
    """Registers an attack whose key may have so many calls in flight."""

    def register(function: Attack) -> Attack:
        MAX_CALLS[function.__name__.replace("_", "-")] = max_calls
        return attack(function)

    return register


def attack_on(settings: Mapping[str, object]) -> Callable[[Attack], Attack]:
    """Registers an attack on a service with these settings."""

    def register(function: Attack) -> Attack:
        SETTINGS[function.__name__.replace("_", "-")] = settings
        return attack(function)

    return register
