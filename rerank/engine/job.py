"""A job: a request as the engine gets it, its work in the queues, and the pieces of work that wait there."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from rerank.engine.strategies import Cost, Steps, describe
from rerank.errors import InvalidRequest
from rerank.types import Passage, Query, RankOptions

T = TypeVar("T")
R = TypeVar("R")

#: Reserves tokens of the caller's quota during the block. Raises: Overloaded if they are too many.
Queueing: TypeAlias = Callable[[float], AbstractContextManager[None]]


def _unbounded(tokens: float) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class CallerShare:
    """A caller's share of the engine. Callers that always wait have equal shares.

    Attributes:
        name: of the caller: that of its API key, or the address of its connection.
        queueing: bounds the caller's tokens in work; by default they have no bound.
    """

    name: str = ""
    queueing: Queueing = field(default=_unbounded, repr=False)


@dataclass(frozen=True, eq=False)
class RankJob:
    """A validated request, as the engine gets it.

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
    share: CallerShare = field(default_factory=CallerShare)

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


def too_many_windows(job: RankJob, windows: int, limit: int) -> InvalidRequest:
    """Makes the error of a request that needs more windows than a request may have."""
    return InvalidRequest(
        "strategy.window_size",
        f"{job.strategy} needs {windows} windows for {len(job.candidates)} candidates, more than the limit of "
        f"{limit}; use a larger window_size or stride, or send fewer candidates",
        {"windows": str(windows), "limit": str(limit)},
    )


#: The least that a window counts, as scheduling, encoding and reporting it take time.
MIN_WINDOW_TOKENS = 16


class Stage(Enum):
    """The two stages of a request that each model has."""

    PREPARE = "prepare"
    RANK = "rank"


class ModelStage(NamedTuple):
    """One stage of one model, which has its own queue and its own measured rate.

    Its work is counted in tokens: positions of the model's input for RANK; for PREPARE, an estimate from the length of
    the texts to embed.
    """

    stage: Stage
    model: str


class Completed(NamedTuple, Generic[R]):
    """A result of a stage, with its time in the queue and the duration of its batch."""

    result: R
    queue_ms: float
    batch_ms: float


class ExpectedWork(NamedTuple):
    """The work that a request will probably need of one model: its number of windows, and tokens of each stage."""

    windows: float
    rank_tokens: float
    prepare_tokens: float


@dataclass
class _Windows:
    """The windows that a job is expected to need of one model, and those encoded so far with their tokens."""

    expected: float
    encoded: int = 0
    tokens: int = 0


@dataclass(eq=False)
class QueuedJob:
    """One request's work in the queues.

    Attributes:
        caller: the name of its caller; callers have equal shares of each stage.
        remaining: estimated tokens that remain, including those that are running.
        tags: in each stage where a part of it has run, the tag of its caller since then, see FairQueue.
        came: in each stage, the tokens that had run there when it was first queued.
    """

    caller: str = ""
    remaining: dict[ModelStage, float] = field(default_factory=dict)
    tags: dict[ModelStage, float] = field(default_factory=dict)
    came: dict[ModelStage, float] = field(default_factory=dict)
    _windows: dict[str, _Windows] = field(init=False, default_factory=dict)

    def expect(self, work: Mapping[str, ExpectedWork]) -> None:
        """Sets what remains to this work of each model."""
        for model, expected in work.items():
            self._windows[model] = _Windows(expected.windows)
            self.remaining[ModelStage(Stage.RANK, model)] = expected.rank_tokens
            self.remaining[ModelStage(Stage.PREPARE, model)] = expected.prepare_tokens

    def add_windows(self, model: str, tokens: Sequence[int]) -> None:
        """Counts windows that were encoded and are ranked next.

        Later windows are expected to be like the average of those encoded so far.
        """
        windows = self._windows[model]
        windows.encoded += len(tokens)
        windows.tokens += sum(tokens)
        further = max(0.0, windows.expected - windows.encoded) * (windows.tokens / windows.encoded)
        self.remaining[ModelStage(Stage.RANK, model)] = further + sum(tokens)

    def subtract(self, model_stage: ModelStage, tokens: float) -> None:
        """Subtracts work that is done."""
        self.remaining[model_stage] = max(0.0, self.remaining.get(model_stage, 0.0) - tokens)

    def remaining_tokens(self, stage: Stage) -> float:
        """Sums the tokens that remain in a stage, of all models."""
        return sum(tokens for model_stage, tokens in self.remaining.items() if model_stage.stage is stage)


@dataclass(frozen=True, eq=False)
class Work(Generic[T, R]):
    """A piece of a job, such as one window, and the future of its result."""

    input: T
    job: QueuedJob
    #: Its share of a batch's `max_batch_tokens`, 1 or more.
    tokens: int
    future: asyncio.Future[Completed[R]]
    submitted_s: float

    def fail(self, error: Exception) -> None:
        """Ends the work with an error, unless its request has ended."""
        if not self.future.done():
            self.future.set_exception(error)
