"""Admission control: rejects a request on arrival if it would miss its deadline or overfill the queue.

The decision compares the estimated remaining work of each request with the measured throughput of each model.
Nothing here reads a clock or starts a thread: callers pass the time, in seconds of one clock.

If no batch of a model has run for a second and no admitted request will run one, the next request is admitted as a
probe: that rate does not count for it until a batch has run, as in the half-open state of a circuit breaker.

Short requests go first; waiting raises priority. The priority is the remaining seconds of work minus `age_factor` times
the age: shortest remaining work first, as in PrefillOnly (arXiv 2505.07203), with ageing, so that no request starves.
It decides among the requests of a caller; the FairQueue of each stage decides which caller's turn it is
(rerank/engine/queue.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from rerank.engine.job import QueuedJob, Stage
from rerank.engine.throughput import Throughput
from rerank.errors import DeadlineExceeded, Overloaded

#: The share of the estimated seconds that a request must have until its deadline, if others are in work. Simulated at
#: four times the load with durations that vary by 30 %, 4 % of the admitted requests are late, and 17 % without it.
_MARGIN = 1.4
#: A caller with more than this many times the work of another one is not protected from its requests.
_PROTECTED_WORK = 4
#: The retry delay of a rejected caller before any rate is measured.
_DEFAULT_RETRY_S = 1.0

#: The stages of the models, which run concurrently.
_STAGES = (Stage.PREPARE, Stage.RANK)
#: (2,) seconds of work, in the order of _STAGES.
Seconds: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"


class AdmissionController:
    """Admits or rejects requests, and keeps those that are in work.

    Args:
        throughput: measured rates; before there are any, no request is rejected for a deadline in the future.
        max_queue_tokens: bound on the remaining tokens of all admitted requests, over all models.
    """

    def __init__(self, throughput: Throughput, max_queue_tokens: int) -> None:
        self._throughput = throughput
        self._max_queue_tokens = max_queue_tokens
        self._jobs: dict[QueuedJob, None] = {}  # in order of arrival

    def __len__(self) -> int:
        """The number of admitted requests, including those that are running."""
        return len(self._jobs)

    @property
    def queued_tokens(self) -> float:
        """Remaining tokens of the admitted requests, including those that are running."""
        return sum(job.remaining_tokens(Stage.RANK) for job in self._jobs)

    def admit(self, job: QueuedJob, now_s: float) -> None:
        """Admits the request until `release`. Checks again if it is admitted already and its estimate has changed.

        Raises: DeadlineExceeded, the request would miss its deadline even if it ran alone; Overloaded, the queue is
        full, or this job or an admitted one would probably be late.
        """
        others = [rival for rival in self._jobs if rival is not job]
        if job not in self._jobs:
            stale = (stage for stage in job.remaining if self._throughput.is_stale(stage, now_s))
            job.probes = frozenset(stage for stage in stale if not any(other.remaining.get(stage) for other in others))
        if self._throughput.is_late(job, now_s):
            raise unreachable_deadline(self._throughput, job, now_s)
        if others:
            self._check_beside(others, job, now_s)
        self._jobs[job] = None

    def release(self, job: QueuedJob) -> None:
        """Ends a job, whether it was admitted or not."""
        self._jobs.pop(job, None)

    def _check_beside(self, others: Sequence[QueuedJob], job: QueuedJob, now_s: float) -> None:
        """Raises: Overloaded if the queue is too full beside the others, or a job could be late."""
        queued, limit = sum(other.remaining_tokens(Stage.RANK) for other in others), self._max_queue_tokens
        tokens = job.remaining_tokens(Stage.RANK)
        if queued and queued + tokens > limit:
            raise Overloaded(
                f"{queued:.0f} tokens are queued; {tokens:.0f} more exceed the limit of {limit}; try again later",
                retry_after_s=self._drain_s(),
                metadata={"exceeded": "max_queue_tokens", "queued_tokens": f"{queued:.0f}", "limit": str(limit)},
            )
        all_s = sum(map(self._throughput.seconds, (*others, job)))
        earliest_s = min(other.latest_end_s for other in (*others, job))
        if now_s + _MARGIN * all_s > earliest_s:  # otherwise none can be late
            self._check_finish_in_time(job, now_s)

    def _check_finish_in_time(self, job: QueuedJob, now_s: float) -> None:
        """Rejects a request that would be late, or would make an admitted one late.

        Not protected are requests of callers that have more of them in work than its own caller, or several times its
        work: in equal shares of the model, they are late because of what they ask for.
        """
        by_turn = self._by_turn([*self._rivals(job), job])
        seconds = {
            admitted: np.array([self._throughput.seconds(admitted, stage) for stage in _STAGES]) for admitted in by_turn
        }
        ahead = others_ahead = np.zeros(len(_STAGES))  # with and without the request
        total = sum(seconds.values(), ahead)
        held = Counter(admitted.caller for admitted in by_turn)
        work_s: dict[str, float] = defaultdict(float)
        for admitted in by_turn:
            work_s[admitted.caller] += float(seconds[admitted].sum())
        protected = {
            caller
            for caller in held
            if held[caller] <= held[job.caller] and work_s[caller] <= _PROTECTED_WORK * work_s[job.caller]
        }
        for admitted in by_turn:
            late_s = now_s + _finish_s(seconds[admitted], ahead, total) - admitted.latest_end_s
            without_s = now_s + _finish_s(seconds[admitted], others_ahead, total - seconds[job]) - admitted.latest_end_s
            if late_s > 0 and (admitted is job or (without_s <= 0 and admitted.caller in protected)):
                raise self._overloaded("the request" if admitted is job else "an admitted request", late_s)
            ahead = ahead + seconds[admitted]
            others_ahead = others_ahead if admitted is job else others_ahead + seconds[admitted]

    def _by_turn(self, jobs: Sequence[QueuedJob]) -> list[QueuedJob]:
        """Sorts the jobs by estimated end if callers have equal shares, that is by their caller's work until then."""
        turns: dict[QueuedJob, float] = {}
        work_s: dict[str, float] = defaultdict(float)
        for job in sorted(jobs, key=self._throughput.priority):
            work_s[job.caller] += self._throughput.seconds(job)
            turns[job] = work_s[job.caller]
        return sorted(turns, key=turns.__getitem__)

    def _rivals(self, job: QueuedJob) -> list[QueuedJob]:
        """Returns the other admitted requests that need a model of this one; other models run on other threads."""
        stages = job.remaining.keys()
        return [rival for rival in self._jobs if rival is not job and not stages.isdisjoint(rival.remaining)]

    def _overloaded(self, late: str, late_s: float) -> Overloaded:
        late_ms, queued = late_s * 1000, f"{self.queued_tokens:.0f}"
        return Overloaded(
            f"{queued} tokens are queued, which could make {late} {late_ms:.0f} ms late; "
            "try again later, allow more time, or allow a partial answer",
            retry_after_s=self._drain_s(),
            metadata={"exceeded": "deadlines", "queued_tokens": queued, "late_ms": f"{late_ms:.0f}"},
        )

    def _drain_s(self) -> float:
        """Estimates the seconds until all admitted work is done, which are those of the slower stage."""
        drain_s = max(sum(self._throughput.seconds(job, stage) for job in self._jobs) for stage in _STAGES)
        return drain_s or _DEFAULT_RETRY_S


def _finish_s(own: Seconds, ahead: Seconds, total: Seconds) -> float:
    """Estimates the seconds until a request ends, with its own work and that of higher priority.

    Its batches take up to twice as long as alone, because they hold windows of others too, as long as there are any.
    """
    rank_s = min(2 * own[1], total[1] - ahead[1])
    return _MARGIN * float(max(ahead[0] + own[0], ahead[1]) + rank_s)


def unreachable_deadline(throughput: Throughput, job: QueuedJob, now_s: float) -> DeadlineExceeded:
    """Makes the error of a request that would miss its deadline even if it ran alone."""
    needed_ms = throughput.seconds(job) * 1000
    left_ms = max(0.0, job.latest_end_s - now_s) * 1000
    return DeadlineExceeded(
        f"{needed_ms:.0f} ms of work remain and the deadline is in {left_ms:.0f} ms; allow more time, ask for fewer "
        "candidates, or allow a partial answer",
        {"needed_ms": f"{needed_ms:.0f}", "left_ms": f"{left_ms:.0f}"},
    )
