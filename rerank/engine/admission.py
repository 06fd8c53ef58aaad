"""Admission control: rejects a request on arrival if it would miss its deadline or overfill the queue.

The decision compares the estimated remaining work of each request with the measured throughput of each model.
Nothing here reads a clock or starts a thread: callers pass the time, in seconds of one clock.

The priority of a request is its remaining seconds of work less a share of its age: shortest remaining work first, as in
PrefillOnly (arXiv 2505.07203), with ageing, so that no request starves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rerank.engine.strategies import Cascade, Strategy
from rerank.errors import DeadlineExceeded, Overloaded
from rerank.types import Passage

#: The weight of older batches in a measured rate, and of older windows in an average, at each new observation.
_DECAY = 0.9
#: A measured rate expires after this many seconds, or after this many times the length of its last batch.
_RATE_EXPIRY_S, _RATE_EXPIRY_BATCHES = 30.0, 10
#: The retry delay that a rejected caller is told before any rate is measured.
_DEFAULT_RETRY_S = 1.0


class Stage(Enum):
    """The two stages of a request that a worker runs."""

    PREPARE = "prepare"
    RANK = "rank"


class ModelStage(NamedTuple):
    """One stage of one model: the unit for which throughput is measured.

    Its work is counted in tokens: positions of the model's input for RANK, texts to embed for PREPARE.
    """

    stage: Stage
    model: str


@dataclass(eq=False)
class PendingRequest:
    """Arrival, deadline and remaining work of a request in the engine.

    `deadline_s` is infinite without a deadline, and where a partial answer is allowed.
    """

    arrived_s: float
    deadline_s: float = math.inf
    #: Estimated tokens that remain, including those that are running.
    remaining: dict[ModelStage, float] = field(default_factory=dict)

    def remaining_tokens(self, stage: Stage) -> float:
        return sum(tokens for model_stage, tokens in self.remaining.items() if model_stage.stage is stage)

    def subtract(self, model_stage: ModelStage, tokens: float) -> None:
        """Subtracts work that is done."""
        self.remaining[model_stage] = max(0.0, self.remaining.get(model_stage, 0.0) - tokens)


@dataclass
class _Rate:
    """Decayed sums of tokens and seconds over batches, so that long batches weigh more than short ones."""

    tokens: float = 0.0
    seconds: float = 0.0
    expires_s: float = -math.inf

    def observe(self, tokens: float, seconds: float, now_s: float) -> None:
        if now_s > self.expires_s:
            self.tokens = self.seconds = 0.0
        self.tokens = _DECAY * self.tokens + tokens
        self.seconds = _DECAY * self.seconds + seconds
        self.expires_s = now_s + max(_RATE_EXPIRY_S, _RATE_EXPIRY_BATCHES * seconds)


class Throughput:
    """Measured tokens per second of each model and stage, and the priorities that follow from them.

    Args:
        age_factor: seconds of remaining work that one second of waiting offsets. A request with r seconds of work is
            overtaken only by requests that arrive within r / age_factor seconds after it.
    """

    def __init__(self, age_factor: float) -> None:
        self._age_factor = age_factor
        self._rates: dict[ModelStage, _Rate] = {}

    def observe(self, model_stage: ModelStage, tokens: float, seconds: float, now_s: float) -> None:
        """Records a batch that ended at `now_s`. The first batch of a model warms it up and is not counted."""
        if model_stage not in self._rates:
            self._rates[model_stage] = _Rate()
        else:
            self._rates[model_stage].observe(tokens, seconds, now_s)

    def seconds(self, remaining: Mapping[ModelStage, float], now_s: float, stage: Stage | None = None) -> float:
        """Duration of the work if it runs alone, in all stages or in one; work without a measured rate counts 0."""
        total = 0.0
        for model_stage, tokens in remaining.items():
            rate = self._rates.get(model_stage)
            if rate and rate.tokens and now_s <= rate.expires_s and stage in (None, model_stage.stage):
                total += tokens * rate.seconds / rate.tokens
        return total

    def priority(self, request: PendingRequest, now_s: float) -> float:
        """Remaining seconds - age_factor * age, up to a constant that all requests share; the smallest runs first."""
        return self.seconds(request.remaining, now_s) + self._age_factor * request.arrived_s

    def is_late(self, request: PendingRequest, now_s: float) -> bool:
        """True if the request would miss its deadline even if it ran alone from now on."""
        return now_s + self.seconds(request.remaining, now_s) > request.deadline_s


class PassageTokens:
    """Average tokens per passage in the latest windows of each model."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def observe(self, model: str, tokens: Sequence[int], passages: Sequence[int]) -> None:
        old_tokens, old_passages = self._sums.get(model, (0.0, 0.0))
        self._sums[model] = (_DECAY * old_tokens + sum(tokens), _DECAY * old_passages + sum(passages))

    def average(self, model: str) -> float:
        """Tokens per passage; 1, the least possible, before the model's first window."""
        tokens, passages = self._sums.get(model, (0.0, 0.0))
        return tokens / passages if passages else 1.0


@dataclass
class _ExpectedWindows:
    """The windows that a request is expected to need of one model, and those encoded so far."""

    expected: float
    tokens_each: float
    encoded: int = 0
    encoded_tokens: int = 0

    @property
    def remaining_tokens(self) -> float:
        """Tokens of the windows that are not encoded yet; each is assumed to be like the average encoded one."""
        tokens_each = self.encoded_tokens / self.encoded if self.encoded else self.tokens_each
        return max(0.0, self.expected - self.encoded) * tokens_each


class WorkEstimate:
    """Estimate of the remaining work of one request, from its schedule's bounds and its windows so far.

    Args:
        strategy: the schedule of the request.
        model: the model of the request; a cascade also has a preranker.
        passages: the candidates.
        tokens_per_passage: model → average tokens per passage, see PassageTokens.
    """

    def __init__(
        self, strategy: Strategy, model: str, passages: Sequence[Passage], tokens_per_passage: Callable[[str], float]
    ) -> None:
        n = len(passages)
        self._windows = {
            name: _ExpectedWindows(
                _expected_windows(steps, n), max(1.0, min(n, steps.window_size) * tokens_per_passage(name))
            )
            for name, steps in _strategies_by_model(strategy, model).items()
        }
        self._to_prepare = dict.fromkeys(self._windows, prepare_tokens(passages))

    def mark_prepared(self, model: str) -> None:
        self._to_prepare[model] = 0

    def remaining(self) -> dict[ModelStage, float]:
        """Tokens of the work that is still to come."""
        rank = {ModelStage(Stage.RANK, model): windows.remaining_tokens for model, windows in self._windows.items()}
        prepare = {ModelStage(Stage.PREPARE, model): float(tokens) for model, tokens in self._to_prepare.items()}
        return rank | prepare

    def add_round(self, model: str, tokens: Sequence[int]) -> dict[ModelStage, float]:
        """Counts the encoded windows of the next round. Returns the remaining work, this round included."""
        windows = self._windows[model]
        windows.encoded += len(tokens)
        windows.encoded_tokens += sum(tokens)
        remaining = self.remaining()
        remaining[ModelStage(Stage.RANK, model)] += sum(max(1, window_tokens) for window_tokens in tokens)
        return remaining


def prepare_tokens(passages: Sequence[Passage]) -> int:
    """The number of texts to embed: the query and each passage without a vector."""
    return 1 + sum(passage.vector is None for passage in passages)


def _strategies_by_model(strategy: Strategy, model: str) -> dict[str, Strategy]:
    if isinstance(strategy, Cascade):
        return {strategy.preranker: strategy.preranker_strategy, model: strategy}
    return {model: strategy}


def _expected_windows(strategy: Strategy, n: int) -> float:
    """The middle between the bounds; for a cascade, the one window that the request's own model reads."""
    if isinstance(strategy, Cascade):
        return min(n, 1)
    cost = strategy.cost(n)
    return (cost.min_windows + cost.max_windows) / 2


class AdmissionController:
    """Admits or rejects requests, and keeps those that are in work.

    Args:
        throughput: measured rates; until there are any, no request is rejected for a deadline in the future.
        max_queue_tokens: bound on the remaining tokens of all admitted requests, over all models.
    """

    def __init__(self, throughput: Throughput, max_queue_tokens: int) -> None:
        self._throughput = throughput
        self._max_queue_tokens = max_queue_tokens
        self._requests: dict[PendingRequest, None] = {}  # in order of arrival

    @property
    def queued_tokens(self) -> float:
        """Remaining tokens of the admitted requests, including those that are running."""
        return sum(request.remaining_tokens(Stage.RANK) for request in self._requests)

    def admit(self, request: PendingRequest, now_s: float) -> None:
        """Admits the request until `release`. Checks again if it is admitted already and its estimate has changed.

        Raises:
            DeadlineExceeded: the request would miss its deadline even if it ran alone.
            Overloaded: the queue is full, or requests of higher priority would make this one late.
        """
        if self._throughput.is_late(request, now_s):
            raise unreachable_deadline(self._throughput, request, now_s)
        self._check_queue_has_room(request, now_s)
        self._check_finishes_in_time(request, now_s)
        self._requests[request] = None

    def release(self, request: PendingRequest) -> None:
        self._requests.pop(request, None)

    def _check_queue_has_room(self, request: PendingRequest, now_s: float) -> None:
        queued = sum(other.remaining_tokens(Stage.RANK) for other in self._requests if other is not request)
        tokens = request.remaining_tokens(Stage.RANK)
        if queued and queued + tokens > self._max_queue_tokens:
            raise Overloaded(
                f"{queued:.0f} tokens are queued; {tokens:.0f} more exceed the limit of {self._max_queue_tokens}; "
                "try again later",
                retry_after_s=self._drain_s(now_s),
                metadata={"queued_tokens": f"{queued:.0f}", "limit": str(self._max_queue_tokens)},
            )

    def _check_finishes_in_time(self, request: PendingRequest, now_s: float) -> None:
        if math.isinf(request.deadline_s):
            return
        finish_s = self._finish_s(request, now_s)
        if finish_s > request.deadline_s:
            late_ms = (finish_s - request.deadline_s) * 1000
            raise Overloaded(
                f"{self.queued_tokens:.0f} tokens are queued, which would make the request {late_ms:.0f} ms late; "
                "try again later, allow more time, or allow a partial answer",
                retry_after_s=self._drain_s(now_s),
                metadata={"queued_tokens": f"{self.queued_tokens:.0f}", "late_ms": f"{late_ms:.0f}"},
            )

    def _finish_s(self, request: PendingRequest, now_s: float) -> float:
        """Estimated completion time if no request of higher priority arrives; the two stages run concurrently."""
        priority = self._throughput.priority(request, now_s)
        earlier = [
            other
            for other in self._requests
            if other is not request and self._throughput.priority(other, now_s) <= priority
        ]

        def seconds(requests: list[PendingRequest], stage: Stage) -> float:
            return sum(self._throughput.seconds(each.remaining, now_s, stage) for each in requests)

        prepared_s = seconds([*earlier, request], Stage.PREPARE)
        return now_s + max(prepared_s, seconds(earlier, Stage.RANK)) + seconds([request], Stage.RANK)

    def _drain_s(self, now_s: float) -> float:
        """Seconds until all admitted work is done: those of the slower stage."""
        drain_s = max(
            sum(self._throughput.seconds(request.remaining, now_s, stage) for request in self._requests)
            for stage in Stage
        )
        return drain_s or _DEFAULT_RETRY_S


def unreachable_deadline(throughput: Throughput, request: PendingRequest, now_s: float) -> DeadlineExceeded:
    """The error of a request that would miss its deadline even if it ran alone."""
    needed_ms = throughput.seconds(request.remaining, now_s) * 1000
    left_ms = max(0.0, request.deadline_s - now_s) * 1000
    return DeadlineExceeded(
        f"{needed_ms:.0f} ms of work remain and the deadline is in {left_ms:.0f} ms; allow more time, ask for fewer "
        "candidates, or allow a partial answer",
        {"needed_ms": f"{needed_ms:.0f}", "left_ms": f"{left_ms:.0f}"},
    )
