"""Concurrent calls: the stage of a model that runs in an inference server, which forms the batches itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rerank.engine.job import ModelStage, QueuedJob, Work
from rerank.engine.stage import Observers, QueuedStage
from rerank.engine.throughput import Throughput
from rerank.engine.worker import shutting_down

T = TypeVar("T")
R = TypeVar("R")


class ConcurrentCalls(QueuedStage[T, R]):
    """A stage that makes one call for each piece of work, on the event loop, up to `max_in_flight` at a time.

    Work waits in its queue as long as so many calls are in flight. If its request is cancelled or late, its call is
    cancelled, too.

    The measured rate is that of all calls together: while n are in flight, each of them counts 1/n of the time.

    Args:
        model_stage: the model and the stage of all work.
        call: work → its result.
        throughput: records the rate.
        max_in_flight: the most calls at a time.
        observers: called with its work.
    """

    def __init__(
        self,
        model_stage: ModelStage,
        call: Callable[[T], Awaitable[R]],
        throughput: Throughput,
        max_in_flight: int,
        observers: Observers,
    ) -> None:
        super().__init__(
            model_stage, throughput, max_batch_tokens=1, observers=observers
        )  # one piece of work at a time
        self._call = call
        self._free = asyncio.Semaphore(max_in_flight)
        self._tasks: dict[asyncio.Task[None], QueuedJob] = {}
        #: The integral, see `_shared_s`, and when it was last updated.
        self._share_s, self._updated_s = 0.0, 0.0

    async def close(self) -> None:
        """Lets the calls in flight finish; queued work fails with ShuttingDown."""
        await super().close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _process(self, batch: Sequence[Work[T, R]]) -> None:
        """Starts the call of the only piece of work as soon as fewer than `max_in_flight` run."""
        (work,) = batch
        await self._free.acquire()
        if self._closed:
            work.fail(shutting_down())
        if work.future.done():
            self._free.release()
            return
        share_s = self._shared_s()
        task = asyncio.create_task(self._finish(work, share_s))
        self._tasks[task] = work.job
        task.add_done_callback(self._end)
        work.future.add_done_callback(lambda _: task.cancel())

    def _end(self, task: asyncio.Task[None]) -> None:
        self._shared_s()
        del self._tasks[task]
        self._free.release()

    async def _finish(self, work: Work[T, R], share_s: float) -> None:
        """Makes the call of a piece of work and hands its result over."""
        start_s = time.perf_counter()
        try:
            result = await self._call(work.input)
        except Exception as error:
            work.fail(self._failure(work, error))
            for task, job in self._tasks.items():
                if job is work.job and task is not asyncio.current_task():
                    task.cancel()  # nobody waits for the other results of a request that has failed
            return
        seconds = time.perf_counter() - start_s
        self._throughput.observe(self.model_stage, work.tokens, self._shared_s() - share_s)
        self._complete([work], [result], seconds)

    def _shared_s(self) -> float:
        """Updates and returns the integral over time of 1 / (calls in flight), in seconds."""
        now = time.perf_counter()
        self._share_s += (now - self._updated_s) / max(1, len(self._tasks))
        self._updated_s = now
        return self._share_s
