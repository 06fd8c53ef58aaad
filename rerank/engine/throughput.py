"""Measured rates of the models, and the priorities that follow. Nothing here reads a clock.

The rate of a stage is that of the middle third of the latest jobs, so that a stall of the machine, or one strange
request, cannot move the estimate of others. A job that takes less than half of the expected time starts anew: so a
rate that was slow for a while, such as while the machine swapped, rejects no request once the machine is well again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rerank.engine.job import ModelStage, QueuedJob, Stage

#: The number of jobs whose rates are kept.
_JOBS = 9
#: A batch that is faster than expected by more than this factor starts a new average.
_RESTART_SPEEDUP = 2
#: After this many seconds without a batch, a request may probe an idle model.
_PROBE_AFTER_S = 1.0


@dataclass
class _Rate:
    """Amounts per unit of work, such as seconds per token, of the latest jobs."""

    #: Units and amount of each job, the latest one last.
    _jobs: dict[QueuedJob, tuple[float, float]] = field(default_factory=dict)
    #: Units and amount of the middle third.
    _middle: tuple[float, float] = (0.0, 0.0)

    def add(self, job: QueuedJob, units: float, amount: float) -> None:
        if not units:
            return
        before = self._jobs.pop(job, (0.0, 0.0))
        self._jobs[job] = (before[0] + units, before[1] + amount)
        if len(self._jobs) > _JOBS:
            del self._jobs[next(iter(self._jobs))]
        ordered = sorted(self._jobs.values(), key=lambda job: job[1] / job[0])
        n = len(ordered)
        middle = ordered[n // 3 : n - (n + 1) // 3]  # of two the lower one
        self._middle = (sum(units for units, _ in middle), sum(amount for _, amount in middle))

    def restart(self) -> None:
        self._jobs.clear()

    def amount(self, units: float) -> float | None:
        """Estimates the amount of so many units; None if nothing is known."""
        known, amount = self._middle
        return units * amount / known if known else None


@dataclass
class _StageRate:
    """Seconds per token, and when they were last measured."""

    rate: _Rate = field(default_factory=_Rate)
    measured_s: float = -math.inf

    def expected_s(self, tokens: float) -> float:
        return self.rate.amount(tokens) or 0.0


class Throughput:
    """Measured tokens per second of each model and stage and per estimated token, and the priorities that follow.

    Args:
        age_factor: seconds of remaining work that one second of waiting offsets. A request with r seconds of work is
            preceded only by requests that arrive within r / age_factor seconds after it.
    """

    def __init__(self, age_factor: float = 0.05) -> None:
        self.age_factor = age_factor
        self._rates: dict[ModelStage, _StageRate] = {}
        self._token_ratios: dict[str, _Rate] = {}

    def observe(self, model_stage: ModelStage, tokens: Mapping[QueuedJob, float], seconds: float, now_s: float) -> None:
        """Records a batch that ended at `now_s`, with its tokens of each job.

        The first batch of a model warms it up and is not counted.
        """
        if model_stage not in self._rates:
            self._rates[model_stage] = _StageRate()
            return
        of_stage, total = self._rates[model_stage], sum(tokens.values())
        if of_stage.expected_s(total) > _RESTART_SPEEDUP * seconds:
            of_stage.rate.restart()
        for job, of_job in tokens.items():
            of_stage.rate.add(job, of_job, seconds * of_job / total)
        of_stage.measured_s = now_s

    def observe_tokens(self, model: str, job: QueuedJob, tokens: float, estimated: float) -> None:
        """Records the tokens of encoded windows, and what `window_tokens` had estimated for them."""
        self._token_ratios.setdefault(model, _Rate()).add(job, estimated, tokens)

    def token_ratio(self, model: str) -> float:
        """Tokens per estimated token of the model's latest windows; 1 before the first one."""
        rate = self._token_ratios.get(model)
        return (rate.amount(1.0) if rate else None) or 1.0

    def seconds(self, job: QueuedJob, stage: Stage | None = None) -> float:
        """Estimates the time of the remaining work alone, in all stages or in one; 0 if unmeasured or probed."""
        total = 0.0
        for model_stage, tokens in job.remaining.items():
            rate = self._rates.get(model_stage)
            is_probe = model_stage in job.probes and rate and rate.measured_s <= job.arrived_s
            if rate and not is_probe and stage in (None, model_stage.stage):
                total += rate.expected_s(tokens)
        return total

    def expected_s(self, model_stage: ModelStage, tokens: float) -> float | None:
        """Estimates the seconds of a batch; None if unmeasured."""
        rate = self._rates.get(model_stage)
        return rate.rate.amount(tokens) if rate else None

    def tokens_in(self, model_stage: ModelStage, seconds: float) -> float:
        """Tokens that are done in so many seconds; 0 if unmeasured."""
        per_token_s = self.expected_s(model_stage, 1.0)
        return seconds / per_token_s if per_token_s else 0.0

    def is_stale(self, model_stage: ModelStage, now_s: float) -> bool:
        """Returns True if the latest measured batch ended more than `_PROBE_AFTER_S` ago."""
        rate = self._rates.get(model_stage)
        return rate is not None and now_s > rate.measured_s + _PROBE_AFTER_S

    def priority(self, job: QueuedJob) -> float:
        """Remaining seconds - age_factor * age, up to a constant that all requests share; the smallest runs first."""
        return self.seconds(job) + self.age_factor * job.arrived_s

    def is_late(self, job: QueuedJob, now_s: float) -> bool:
        """Returns True if the request would miss its deadline even if it ran alone from now on."""
        return now_s + self.seconds(job) > job.latest_end_s
