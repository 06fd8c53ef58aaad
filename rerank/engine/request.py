"""A request as the engine gets it: the texts, the steps that order them, and who asks until when."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

from rerank.engine.strategies import Cost, Steps, describe
from rerank.errors import InvalidRequest
from rerank.types import Passage, Query, RankOptions

#: Reserves tokens of the caller's quota during the block. Raises: Overloaded if they are too many.
Queueing: TypeAlias = Callable[[float], AbstractContextManager[None]]


def _unbounded(tokens: float) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Share:
    """A caller's share of the engine. Callers that always wait have equal shares.

    Attributes:
        name: of the caller: that of its API key, or the address of its connection.
        queueing: bounds the caller's tokens in work; by default they have no bound.
    """

    name: str = ""
    queueing: Queueing = field(default=_unbounded, repr=False)


@dataclass(frozen=True, eq=False)
class RankRequest:
    """A validated request.

    Attributes:
        steps: one, or up to three of a cascade; the last one is that of the request's own model.
        options: of the answer; what they say about the model and its strategy is in `steps`.
        deadline_s: on the event loop's clock; infinite without one.
    """

    query: Query
    candidates: tuple[Passage, ...]
    steps: Steps
    options: RankOptions = field(default_factory=RankOptions)
    deadline_s: float = math.inf
    share: Share = field(default_factory=Share)

    @property
    def strategy(self) -> str:
        """The steps in words."""
        return describe(self.steps)

    def window_bounds(self) -> Cost:
        """Sums the least and the most windows of all steps."""
        costs = [step.strategy.cost(len(self.candidates)) for step in self.steps]
        return Cost(*map(sum, zip(*costs, strict=True)))


def timeout_at(deadline_s: float) -> asyncio.Timeout:
    """Limits a block to this time of the event loop's clock; an infinite one is not a limit."""
    return asyncio.timeout_at(deadline_s if deadline_s < math.inf else None)


def too_many_windows(request: RankRequest, windows: int, limit: int) -> InvalidRequest:
    """Makes the error of a request that needs more windows than a request may have."""
    return InvalidRequest(
        "strategy.window_size",
        f"{request.strategy} needs {windows} windows for {len(request.candidates)} candidates, more than the limit of "
        f"{limit}; use a larger window_size or stride, or send fewer candidates",
        {"windows": str(windows), "limit": str(limit)},
    )
