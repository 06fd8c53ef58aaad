"""Who is let in: a request that would be late, or for which there is no room, hears so at once. Pure."""

from __future__ import annotations

import math

from rerank.engine.throughput import Stage, Task, Throughput
from rerank.errors import DeadlineExceeded, Overloaded

#: What a caller is told to wait while no rate has been measured.
_UNMEASURED_RETRY_S = 1.0


class Admission:
    """Knows the requests that are in work.

    Args:
        throughput: before it has measured anything, nobody is refused because of a deadline.
        max_queue_tokens: the bound on the remaining tokens of all requests, over all models.
    """

    def __init__(self, throughput: Throughput, max_queue_tokens: int) -> None:
        self._throughput = throughput
        self._max_queue_tokens = max_queue_tokens
        self._tasks: dict[Task, None] = {}  # in order of arrival

    @property
    def queued_tokens(self) -> float:
        """What remains of the admitted requests, those that run included."""
        return sum(task.tokens(Stage.RANK) for task in self._tasks)

    def admit(self, task: Task, now_s: float) -> None:
        """Lets the task in until `leave`. Asked again for one that is in, after its estimate changed, it checks again.

        Raises:
            DeadlineExceeded: the deadline could not be met even alone.
            Overloaded: the queue is full, or what goes first would make the request late.
        """
        self._refuse_hopeless(task, now_s)
        self._refuse_crowded(task, now_s)
        self._refuse_delayed(task, now_s)
        self._tasks[task] = None

    def leave(self, task: Task) -> None:
        self._tasks.pop(task, None)

    def _refuse_hopeless(self, task: Task, now_s: float) -> None:
        if self._throughput.is_late(task, now_s):
            raise hopeless(self._throughput, task, now_s)

    def _refuse_crowded(self, task: Task, now_s: float) -> None:
        others = sum(other.tokens(Stage.RANK) for other in self._tasks if other is not task)
        tokens = task.tokens(Stage.RANK)
        if others and others + tokens > self._max_queue_tokens:
            raise Overloaded(
                f"{others:.0f} tokens wait already; {tokens:.0f} more exceed the queue's {self._max_queue_tokens}; "
                "try again later",
                retry_after_s=self._drained_s(now_s),
                metadata={"queued_tokens": f"{others:.0f}", "limit": str(self._max_queue_tokens)},
            )

    def _refuse_delayed(self, task: Task, now_s: float) -> None:
        if math.isinf(task.deadline_s):
            return
        finish_s = self._finish_s(task, now_s)
        if finish_s > task.deadline_s:
            late_ms = (finish_s - task.deadline_s) * 1000
            raise Overloaded(
                f"{self.queued_tokens:.0f} tokens wait already, which would make the request {late_ms:.0f} ms late; "
                "try again later, allow more time, or allow a partial answer",
                retry_after_s=self._drained_s(now_s),
                metadata={"queued_tokens": f"{self.queued_tokens:.0f}", "late_ms": f"{late_ms:.0f}"},
            )

    def _finish_s(self, task: Task, now_s: float) -> float:
        """When the task is done if nobody comes who overtakes it: the stages work side by side, its own in turn."""
        urgency = self._throughput.priority(task, now_s)
        ahead = [
            other for other in self._tasks if other is not task and self._throughput.priority(other, now_s) <= urgency
        ]

        def seconds(tasks: list[Task], stage: Stage) -> float:
            return sum(self._throughput.seconds(one.left, now_s, stage) for one in tasks)

        prepared_s = seconds([*ahead, task], Stage.PREPARE)
        return now_s + max(prepared_s, seconds(ahead, Stage.RANK)) + seconds([task], Stage.RANK)

    def _drained_s(self, now_s: float) -> float:
        """How long the work that is in takes, the longer of both stages."""
        longest = max(sum(self._throughput.seconds(task.left, now_s, stage) for task in self._tasks) for stage in Stage)
        return longest or _UNMEASURED_RETRY_S


def hopeless(throughput: Throughput, task: Task, now_s: float) -> DeadlineExceeded:
    """What a request is told that would be late even alone."""
    needed_ms = throughput.seconds(task.left, now_s) * 1000
    left_ms = max(0.0, task.deadline_s - now_s) * 1000
    return DeadlineExceeded(
        f"{needed_ms:.0f} ms of work remain and the deadline is in {left_ms:.0f} ms; allow more time, ask for fewer "
        "candidates, or allow a partial answer",
        {"needed_ms": f"{needed_ms:.0f}", "left_ms": f"{left_ms:.0f}"},
    )
