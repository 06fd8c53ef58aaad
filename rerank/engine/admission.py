"""Admission control: rejects a request on arrival if it would miss its deadline or overfill the queue.

The decision compares the estimated remaining work of each request with the measured throughput of each model.
Nothing here reads a clock or starts a thread: callers pass the time, in seconds of one clock.

A measured rate can be wrong after a stall of the machine, such as swapping. Three rules keep it from rejecting requests
once the machine is well again:

- A batch that takes more than four times as long as expected counts only if the one before it did, too.
- A batch that takes less than half of the expected time starts a new average.
- If no batch of a model has run for a second and no admitted request will run one, the next request is admitted as a
  probe: that rate does not count for it until a batch has run, as in the half-open state of a circuit breaker.

The priority of a request is its remaining seconds of work less a share of its age: shortest remaining work first, as in
PrefillOnly (arXiv 2505.07203), with ageing, so that no request starves. It decides among the requests of a caller; the
Batcher of each stage decides which caller's turn it is (rerank/engine/worker.py).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np

from rerank.engine.job import Job, prepare_tokens, window_tokens
from rerank.engine.strategies import Cascade, Interpolated, Strategy
from rerank.errors import DeadlineExceeded, Overloaded
from rerank.rankers.base import RankerInfo

#: The weight of older batches in a measured rate, and of older windows in an average, at each new observation.
_DECAY = 0.9
#: A batch that is slower than expected by more than this factor is taken for a stall if the one before was not.
_STALL_SLOWDOWN = 4
#: A batch that is faster than expected by more than this factor starts a new average.
_RESTART_SPEEDUP = 2
#: The share of the estimated seconds that a request must have until its deadline, if others are in work. Simulated at
#: four times the load with durations that vary by 30 %, 4 % of the admitted requests are late, and 17 % without it.
_MARGIN = 1.4
#: After this many seconds without a batch, a request may probe an idle model.
_PROBE_AFTER_S = 1.0
#: The least that a window counts, as scheduling, encoding and reporting it take time.
MIN_WINDOW_TOKENS = 16
#: The retry delay that a rejected caller is told before any rate is measured.
_DEFAULT_RETRY_S = 1.0


#: Seconds of work of each Stage, in its order; the two run concurrently.
Seconds: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"


#: The caller whose request the running task answers: the name of its API key, or else the address of its connection.
current_caller_name: ContextVar[str] = ContextVar("current_caller_name", default="")


class Stage(Enum):
    """The two stages of a request that a worker runs."""

    PREPARE = "prepare"
    RANK = "rank"


class ModelStage(NamedTuple):
    """One stage of one model: the unit for which throughput is measured.

    Its work is counted in tokens: positions of the model's input for RANK; for PREPARE, an estimate from the length of
    the texts to embed.
    """

    stage: Stage
    model: str


@dataclass(eq=False)
class PendingRequest:
    """Arrival, deadline, remaining work and caller of a request in the engine.

    `deadline_s` is infinite without a deadline, and where a partial answer is allowed.
    """

    arrived_s: float
    deadline_s: float = math.inf
    #: Estimated tokens that remain, including those that are running.
    remaining: dict[ModelStage, float] = field(default_factory=dict)
    #: The stages that this request probes: their rates count only if they were measured after its arrival.
    probes: frozenset[ModelStage] = frozenset()
    #: In each stage where a part of it has run: the tag of its caller since then, see Batcher.
    tags: dict[ModelStage, float] = field(default_factory=dict)
    caller: str = field(default_factory=current_caller_name.get)

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
    #: When the latest batch ended.
    measured_s: float = -math.inf
    last_was_slow: bool = False

    def expected_s(self, tokens: float) -> float:
        return tokens * self.seconds / self.tokens if self.tokens else 0.0

    def observe(self, tokens: float, seconds: float, now_s: float) -> None:
        expected_s = self.expected_s(tokens)
        last_was_slow, self.last_was_slow = self.last_was_slow, 0 < expected_s < seconds / _STALL_SLOWDOWN
        if self.last_was_slow and not last_was_slow:
            return
        if expected_s > _RESTART_SPEEDUP * seconds:
            self.tokens = self.seconds = 0.0
        self.tokens = _DECAY * self.tokens + tokens
        self.seconds = _DECAY * self.seconds + seconds
        self.measured_s = now_s


class Throughput:
    """Measured tokens per second of each model and stage, and the priorities that follow from them.

    Args:
        age_factor: seconds of remaining work that one second of waiting offsets. A request with r seconds of work is
            overtaken only by requests that arrive within r / age_factor seconds after it.
    """

    def __init__(self, age_factor: float) -> None:
        self.age_factor = age_factor
        self._rates: dict[ModelStage, _Rate] = {}

    def observe(self, model_stage: ModelStage, tokens: float, seconds: float, now_s: float) -> None:
        """Records a batch that ended at `now_s`. The first batch of a model warms it up and is not counted."""
        if model_stage not in self._rates:
            self._rates[model_stage] = _Rate()
        else:
            self._rates[model_stage].observe(tokens, seconds, now_s)

    def seconds(self, request: PendingRequest, stage: Stage | None = None) -> float:
        """Duration of the remaining work if it runs alone, in all stages or in one; 0 if unmeasured or probed."""
        total = 0.0
        for model_stage, tokens in request.remaining.items():
            rate = self._rates.get(model_stage)
            is_probe = model_stage in request.probes and rate and rate.measured_s <= request.arrived_s
            if rate and not is_probe and stage in (None, model_stage.stage):
                total += rate.expected_s(tokens)
        return total

    def tokens_in(self, model_stage: ModelStage, seconds: float) -> float:
        """Tokens that are done in so many seconds; 0 if unmeasured."""
        rate = self._rates.get(model_stage)
        return seconds * rate.tokens / rate.seconds if rate and rate.seconds else 0.0

    def is_stale(self, model_stage: ModelStage, now_s: float) -> bool:
        """True if the latest measured batch ended more than `_PROBE_AFTER_S` ago."""
        rate = self._rates.get(model_stage)
        return rate is not None and now_s > rate.measured_s + _PROBE_AFTER_S

    def priority(self, request: PendingRequest) -> float:
        """Remaining seconds - age_factor * age, up to a constant that all requests share; the smallest runs first."""
        return self.seconds(request) + self.age_factor * request.arrived_s

    def is_late(self, request: PendingRequest, now_s: float) -> bool:
        """True if the request would miss its deadline even if it ran alone from now on."""
        return now_s + self.seconds(request) > request.deadline_s


class TokenRatio:
    """Tokens per estimated token of the latest windows of each model; see `window_tokens`."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def observe(self, model: str, tokens: float, estimated: float) -> None:
        old_tokens, old_estimated = self._sums.get(model, (0.0, 0.0))
        self._sums[model] = (_DECAY * old_tokens + tokens, _DECAY * old_estimated + estimated)

    def average(self, model: str) -> float:
        """The ratio; 1 before the model's first window."""
        tokens, estimated = self._sums.get(model, (0.0, 0.0))
        return tokens / estimated if estimated else 1.0


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
    """Estimate of the remaining work of one request, from its texts, its schedule's bounds and its windows so far.

    Args:
        job: the request.
        infos: the models' rankers.
        ratio: model → tokens per estimated token, see TokenRatio.
    """

    def __init__(self, job: Job, infos: Mapping[str, RankerInfo], ratio: Callable[[str], float]) -> None:
        passages = [candidate.passage for candidate in job.candidates]
        n = len(passages)
        self._windows: dict[str, _ExpectedWindows] = {}
        self._to_prepare: dict[str, float] = {}
        for name, steps in strategies_by_model(job.strategy, job.model).items():
            windows = _expected_windows(steps, n)
            tokens_each = ratio(name) * window_tokens(infos[name], passages, min(n, steps.window_size))
            self._windows[name] = _ExpectedWindows(windows, max(MIN_WINDOW_TOKENS, tokens_each))
            self._to_prepare[name] = prepare_tokens(infos[name], job.query, passages)

    def mark_prepared(self, model: str) -> None:
        self._to_prepare[model] = 0

    def remaining(self) -> dict[ModelStage, float]:
        """Tokens of the work to come."""
        rank = {ModelStage(Stage.RANK, model): windows.remaining_tokens for model, windows in self._windows.items()}
        prepare = {ModelStage(Stage.PREPARE, model): float(tokens) for model, tokens in self._to_prepare.items()}
        return rank | prepare

    def add_round(self, model: str, tokens: Sequence[int]) -> dict[ModelStage, float]:
        """Counts the windows that were encoded and are ranked next. Returns the remaining work, with these windows."""
        windows = self._windows[model]
        windows.encoded += len(tokens)
        windows.encoded_tokens += sum(tokens)
        remaining = self.remaining()
        remaining[ModelStage(Stage.RANK, model)] += sum(tokens)
        return remaining


def strategies_by_model(strategy: Strategy, model: str) -> dict[str, Strategy]:
    """The models that a request asks, with the strategy of each; `model` is that of the request."""
    if isinstance(strategy, Interpolated):
        strategy = strategy.strategy
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
        throughput: measured rates; before there are any, no request is rejected for a deadline in the future.
        max_queue_tokens: bound on the remaining tokens of all admitted requests, over all models.
    """

    def __init__(self, throughput: Throughput, max_queue_tokens: int) -> None:
        self._throughput = throughput
        self._max_queue_tokens = max_queue_tokens
        self._requests: dict[PendingRequest, None] = {}  # in order of arrival

    def __len__(self) -> int:
        """The number of admitted requests, including those that are running."""
        return len(self._requests)

    @property
    def queued_tokens(self) -> float:
        """Remaining tokens of the admitted requests, including those that are running."""
        return sum(request.remaining_tokens(Stage.RANK) for request in self._requests)

    def admit(self, request: PendingRequest, now_s: float) -> None:
        """Admits the request until `release`. Checks again if it is admitted already and its estimate has changed.

        Raises: DeadlineExceeded, the request would miss its deadline even if it ran alone; Overloaded, the queue is
        full, or this request or an admitted one would probably be late.
        """
        others, earliest_s = self._others(request)
        if request not in self._requests:
            idle = (each for each in request.remaining if not others.remaining.get(each))
            request.probes = frozenset(each for each in idle if self._throughput.is_stale(each, now_s))
        if self._throughput.is_late(request, now_s):
            raise unreachable_deadline(self._throughput, request, now_s)
        if queued := others.remaining_tokens(Stage.RANK):
            self._check_queue_has_room(request, queued)
        all_s = self._throughput.seconds(others) + self._throughput.seconds(request)
        if now_s + _MARGIN * all_s > min(earliest_s, request.deadline_s) and others.remaining:
            self._check_finish_in_time(request, now_s)
        self._requests[request] = None

    def _others(self, request: PendingRequest) -> tuple[PendingRequest, float]:
        """The remaining work of the other admitted requests, as one, and their earliest deadline."""
        remaining: dict[ModelStage, float] = {}
        earliest_s = math.inf
        for other in self._requests:
            if other is not request:
                earliest_s = min(earliest_s, other.deadline_s)
                for model_stage, tokens in other.remaining.items():
                    remaining[model_stage] = remaining.get(model_stage, 0.0) + tokens
        return PendingRequest(request.arrived_s, remaining=remaining), earliest_s

    def release(self, request: PendingRequest) -> None:
        self._requests.pop(request, None)

    def _check_queue_has_room(self, request: PendingRequest, queued: float) -> None:
        tokens, limit = request.remaining_tokens(Stage.RANK), self._max_queue_tokens
        if queued + tokens > limit:
            raise Overloaded(
                f"{queued:.0f} tokens are queued; {tokens:.0f} more exceed the limit of {limit}; try again later",
                retry_after_s=self._drain_s(),
                metadata={"exceeded": "max_queue_tokens", "queued_tokens": f"{queued:.0f}", "limit": str(limit)},
            )

    def _check_finish_in_time(self, request: PendingRequest, now_s: float) -> None:
        """Checks that the request finishes in time, and that each admitted one does that would without it, except those
        of callers that have more requests in work than its own."""
        by_priority = self._by_turn([*self._rivals(request), request])
        seconds = {each: np.array([self._throughput.seconds(each, stage) for stage in Stage]) for each in by_priority}
        ahead = others_ahead = np.zeros(len(Stage))  # with and without the request
        total = sum(seconds.values(), ahead)
        held = Counter(each.caller for each in by_priority)
        for each in by_priority:
            late_s = now_s + _finish_s(seconds[each], ahead, total) - each.deadline_s
            without_s = now_s + _finish_s(seconds[each], others_ahead, total - seconds[request]) - each.deadline_s
            if late_s > 0 and (each is request or (without_s <= 0 and held[each.caller] <= held[request.caller])):
                raise self._overloaded("the request" if each is request else "an admitted request", late_s)
            ahead = ahead + seconds[each]
            others_ahead = others_ahead if each is request else others_ahead + seconds[each]

    def _by_turn(self, requests: Sequence[PendingRequest]) -> list[PendingRequest]:
        """The requests in the probable order of their ends: by their callers' work until then, as shares are equal."""
        turns: dict[PendingRequest, float] = {}
        work_s: dict[str, float] = defaultdict(float)
        for each in sorted(requests, key=self._throughput.priority):
            work_s[each.caller] += self._throughput.seconds(each)
            turns[each] = work_s[each.caller]
        return sorted(turns, key=turns.__getitem__)

    def _rivals(self, request: PendingRequest) -> list[PendingRequest]:
        """The other admitted requests that need a model of this one; other models run on other threads."""
        stages = request.remaining.keys()
        return [each for each in self._requests if each is not request and not stages.isdisjoint(each.remaining)]

    def _overloaded(self, late: str, late_s: float) -> Overloaded:
        late_ms, queued = late_s * 1000, f"{self.queued_tokens:.0f}"
        return Overloaded(
            f"{queued} tokens are queued, which could make {late} {late_ms:.0f} ms late; "
            "try again later, allow more time, or allow a partial answer",
            retry_after_s=self._drain_s(),
            metadata={"exceeded": "deadlines", "queued_tokens": queued, "late_ms": f"{late_ms:.0f}"},
        )

    def _drain_s(self) -> float:
        """Seconds until all admitted work is done: those of the slower stage."""
        drain_s = max(sum(self._throughput.seconds(request, stage) for request in self._requests) for stage in Stage)
        return drain_s or _DEFAULT_RETRY_S


def _finish_s(own: Seconds, ahead: Seconds, total: Seconds) -> float:
    """Seconds until a request finishes that has this work of its own, and other work of higher priority ahead of it.

    Its batches take up to twice as long as alone, because they hold windows of others too, as long as there are any.
    """
    rank_s = min(2 * own[1], total[1] - ahead[1])
    return _MARGIN * float(max(ahead[0] + own[0], ahead[1]) + rank_s)


def unreachable_deadline(throughput: Throughput, request: PendingRequest, now_s: float) -> DeadlineExceeded:
    """The error of a request that would miss its deadline even if it ran alone."""
    needed_ms = throughput.seconds(request) * 1000
    left_ms = max(0.0, request.deadline_s - now_s) * 1000
    return DeadlineExceeded(
        f"{needed_ms:.0f} ms of work remain and the deadline is in {left_ms:.0f} ms; allow more time, ask for fewer "
        "candidates, or allow a partial answer",
        {"needed_ms": f"{needed_ms:.0f}", "left_ms": f"{left_ms:.0f}"},
    )
