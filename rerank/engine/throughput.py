"""What is left of each request, how fast it gets done, and who goes first. Pure: time is passed in, in seconds.

Priority is the remaining work of the whole request, less a part of its age: shortest remaining first (as PrefillOnly
does it, arXiv 2505.07203), and nobody starves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

#: How much a batch weighs in the rate when the next one has been measured.
_DECAY = 0.9
#: A rate that nothing has confirmed for so long, or for so many batches' time, says nothing any more.
_TRUSTED_S, _TRUSTED_BATCHES = 30.0, 10


class Stage(Enum):
    """The two threads that a request passes."""

    PREPARE = "prepare"
    RANK = "rank"


class Lane(NamedTuple):
    """One kind of work: what one stage does for one model. Its unit is called a token: a position of the model's row
    for RANK, a passage to encode for PREPARE."""

    stage: Stage
    model: str


@dataclass(eq=False)
class Task:
    """One request among others. Without a deadline, or where a partial answer will do, `deadline_s` is infinite."""

    arrived_s: float
    deadline_s: float = math.inf
    #: Tokens that remain, those that run included; estimates.
    left: dict[Lane, float] = field(default_factory=dict)

    def tokens(self, stage: Stage) -> float:
        return sum(tokens for lane, tokens in self.left.items() if lane.stage is stage)

    def done(self, lane: Lane, tokens: float) -> None:
        self.left[lane] = max(0.0, self.left.get(lane, 0.0) - tokens)


@dataclass
class _Rate:
    """Decayed sums over the batches of a lane: their quotient weighs long batches more than short ones."""

    tokens: float = 0.0
    seconds: float = 0.0
    trusted_until_s: float = -math.inf

    def observe(self, tokens: float, seconds: float, now_s: float) -> None:
        if now_s > self.trusted_until_s:
            self.tokens = self.seconds = 0.0
        self.tokens = _DECAY * self.tokens + tokens
        self.seconds = _DECAY * self.seconds + seconds
        self.trusted_until_s = now_s + max(_TRUSTED_S, _TRUSTED_BATCHES * seconds)


class Throughput:
    """Measured rates, and what follows from them.

    Args:
        age_factor: seconds of remaining work that a second of waiting makes up for. A request with r seconds of work
            is overtaken only by those that come within r / age_factor seconds after it.
    """

    def __init__(self, age_factor: float) -> None:
        self._age_factor = age_factor
        self._rates: dict[Lane, _Rate] = {}

    def observe(self, lane: Lane, tokens: float, seconds: float, now_s: float) -> None:
        """Counts a batch that ended at `now_s`. A lane's first batch warms it up and is not counted."""
        if lane not in self._rates:
            self._rates[lane] = _Rate()
        else:
            self._rates[lane].observe(tokens, seconds, now_s)

    def seconds(self, left: Mapping[Lane, float], now_s: float, stage: Stage | None = None) -> float:
        """How long the work takes alone, in all stages or in one; what has no measured rate counts nothing."""
        total = 0.0
        for lane, tokens in left.items():
            rate = self._rates.get(lane)
            if rate and rate.tokens and now_s <= rate.trusted_until_s and stage in (None, lane.stage):
                total += tokens * rate.seconds / rate.tokens
        return total

    def priority(self, task: Task, now_s: float) -> float:
        """Smallest first. Remaining seconds - age_factor * waited seconds, less what is equal for all."""
        return self.seconds(task.left, now_s) + self._age_factor * task.arrived_s

    def is_late(self, task: Task, now_s: float) -> bool:
        """Whether the deadline has passed, or would before the request ended even if it were alone from now on."""
        return now_s + self.seconds(task.left, now_s) > task.deadline_s
