"""Timing of variants that run in turn, so that other work on the machine disturbs all of them equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeAlias

#: Values by the name of a figure or of a variant; one value per repeat.
Values: TypeAlias = dict[str, list[float]]


def time_in_turns(
    variants: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.process_time
) -> Values:
    """Seconds of every variant in each of the repeats, after one round as a warm-up.

    Args:
        variants: functions to time, by name.
        clock: CPU time of this process, or another clock in seconds.
    """
    seconds: Values = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        for name, run in variants.items():
            start = clock()
            run()
            if repeat:
                seconds[name].append(clock() - start)
    return seconds


def figure_of(values: Sequence[float]) -> dict[str, float]:
    """Median and range of the repeats."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratio of two variants' seconds in each repeat."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]
