"""Preemption: a short request runs in the middle of a long batch, where the ranker pauses between two layers.

    event loop                                  thread of the model
    batch A (long) is given to the thread   →   rank(A): layer 1
    request B (short) is queued                          layer 2
    B has less than half of A's work: given →            run_given(): rank(B), all of its layers
    B is answered                           ←            layer 3
                                                         …
    A is answered                           ←            done; the time of B does not count as A's

A ranker that can pause calls `ThreadStage.run_given` between its layers (see InterruptibleRanker). That runs the
batches that were given to the thread meanwhile. This file decides whether one is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rerank.engine.job import Job, ModelStage
from rerank.engine.queue import Queued


@dataclass
class Running:
    """A batch that runs in a stage, and the tokens of the batches that have preempted it."""

    model_stage: ModelStage
    batch: Sequence[Queued]
    preempted_by: int = 0
    has_ended: bool = False

    def yields_to(self, job: Job | None) -> bool:
        """Returns True if the job whose turn it is may preempt the batch; None: nothing waits.

        It has less than half of the work of each request in it. Fewer tokens have preempted the batch than it has
        itself, so that it takes about twice its time at most.
        """
        if job is None or self.has_ended or self.preempted_by >= sum(work.tokens for work in self.batch):
            return False
        tokens = self._remaining(job)
        return all(2 * tokens < self._remaining(work.job) for work in self.batch)

    def _remaining(self, job: Job) -> float:
        return job.remaining.get(self.model_stage, 0.0)
