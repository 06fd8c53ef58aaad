"""Stages: a queue of work of one model, and the thread that runs its batches."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from rerank.engine.job import Completed, ModelStage, QueuedJob, Work
from rerank.engine.queue import FairQueue
from rerank.engine.throughput import Throughput
from rerank.engine.worker import Worker, shutting_down
from rerank.errors import RankerFailure, RerankError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: A batch that takes longer than this, and than this multiple of the expected time, is taken to hang; and how long it
#: may take if no time is expected.
_LIMIT_S, _SLOWDOWN, _UNKNOWN_LIMIT_S = 60.0, 20, 600.0
#: How long a running batch may take when the engine closes.
_CLOSE_S = 5.0

#: Called with a batch that has run and its duration in seconds; the futures of requests that had ended are cancelled.
BatchObserver: TypeAlias = Callable[[ModelStage, Sequence[Work[Any, Any]], float], None]
#: Called in the context of a request with the time when it submitted work (`time.perf_counter`) and the results.
ResultsObserver: TypeAlias = Callable[[ModelStage, float, Sequence[Completed[Any]]], None]


@dataclass(frozen=True)
class Observers:
    """Functions that are called with the work of the stages, on the event loop."""

    on_batch: list[BatchObserver] = field(default_factory=list)
    on_results: list[ResultsObserver] = field(default_factory=list)


class QueuedStage(ABC, Generic[T, R]):
    """One stage of a model: a queue of its work, and the loop that takes batches from it; all on the event loop.

    Args:
        model_stage: the model and the stage of all its work.
        throughput: records the duration of each batch.
        max_batch_tokens: see FairQueue.
        observers: called with its work.
    """

    def __init__(
        self, model_stage: ModelStage, throughput: Throughput, max_batch_tokens: int, observers: Observers
    ) -> None:
        self.model_stage = model_stage
        self._observers = observers
        self._name = f"{model_stage.stage.value} {model_stage.model}"
        self._throughput = throughput
        self._queue: FairQueue[Work[T, R]] = FairQueue(model_stage, max_batch_tokens)
        self._wake_up = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """The number of pieces of work in the queue."""
        return len(self._queue)

    def open(self) -> None:
        """Starts to take batches."""
        self._loop = asyncio.create_task(self._process_batches(), name=self._name)

    def refuse_new_work(self) -> None:
        """From now on no work is accepted, and no batch begins."""
        self._closed = True
        self._wake_up.set()

    async def close(self) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        self.refuse_new_work()
        if self._loop is not None:
            await asyncio.wait({self._loop}, timeout=_CLOSE_S)
            self._loop.cancel()  # of a model that hangs
        while batch := self._queue.next_batch():
            for work in batch:
                work.fail(shutting_down())

    async def run(self, job: QueuedJob, inputs: Sequence[T], tokens: Sequence[int]) -> list[Completed[R]]:
        """Runs pieces of a job, of so many tokens each, and returns their results. A job has one such call at a time.

        If the caller is cancelled or a piece fails, those that have not started do not run.

        Raises: ShuttingDown; what the work raised, with RankerFailure in the place of what is not a RerankError.
        """
        if self._closed:
            raise shutting_down()
        if not inputs:
            return []
        loop, submitted_s = asyncio.get_running_loop(), time.perf_counter()
        futures: list[asyncio.Future[Completed[R]]] = [loop.create_future() for _ in inputs]
        for item, size, future in zip(inputs, tokens, futures, strict=True):
            self._queue.add(Work(item, job, size, future, submitted_s))
        self._wake_up.set()
        self._on_new_work()
        try:
            results = await asyncio.gather(*futures)
            for observer in self._observers.on_results:
                observer(self.model_stage, submitted_s, results)
            return results
        finally:
            self._queue.discard(job)

    def _on_new_work(self) -> None:
        """Called when work was added to the queue."""

    async def _process_batches(self) -> None:
        while not self._closed:
            if batch := self._queue.next_batch():
                await self._process(batch)
            else:
                self._wake_up.clear()
                await self._wake_up.wait()

    @abstractmethod
    async def _process(self, batch: Sequence[Work[T, R]]) -> None:
        """Runs or starts a batch, and returns when the next one may follow."""

    def _complete(self, batch: Sequence[Work[T, R]], results: Sequence[R], seconds: float) -> None:
        """Hands the results of a batch over, which took so many seconds."""
        ended_s = time.perf_counter()
        for work, result in zip(batch, results, strict=True):
            work.job.subtract(self.model_stage, work.tokens)
            if not work.future.done():
                queue_ms = (ended_s - work.submitted_s - seconds) * 1000
                work.future.set_result(Completed(result, queue_ms, seconds * 1000))
        for job in dict.fromkeys(work.job for work in batch):
            self._queue.refresh(job)
        for observer in self._observers.on_batch:
            observer(self.model_stage, batch, seconds)

    def _failure(self, work: Work[T, R], error: Exception) -> Exception:
        if isinstance(error, RerankError):
            return error
        stage, model = self.model_stage
        log.error("model %s failed to %s", model, stage.value, exc_info=error)
        if isinstance(error, MemoryError):
            reason = f"a window of {work.tokens} tokens exceeds the memory; use a smaller window_size"
        else:
            reason = reason_of(error)
        failure = RankerFailure(f"model {model} failed to {stage.value}: {reason}")
        failure.__cause__ = error
        return failure


class ThreadStage(QueuedStage[T, R]):
    """A stage that runs its batches on a thread of its own.

    If `run` pauses, a short request runs in the middle of a long batch:

        event loop                                  thread of the model
        batch A (long) is given to the thread   →   A: layer 1
        request B (short) is queued                    layer 2
        B has less than half of A's work        →   B: all of its layers
        B is answered                           ←      layer 3 of A

    Args:
        model_stage, throughput, max_batch_tokens, observers: see QueuedStage.
        run: inputs of a batch → one result each, in order; called on the thread.
        pauses: `run` calls `worker.run_waiting` between its layers.
    """

    def __init__(
        self,
        model_stage: ModelStage,
        run: Callable[[Sequence[T]], Sequence[R]],
        throughput: Throughput,
        max_batch_tokens: int,
        observers: Observers,
        pauses: bool = False,
    ) -> None:
        super().__init__(model_stage, throughput, max_batch_tokens, observers)
        self.worker = Worker(self._name)
        self._run_batch = run
        self._pauses = pauses
        self._running: Sequence[Work[T, R]] = ()
        self._preempting: asyncio.Task[None] | None = None
        #: Tokens that have run in the middle of the running batch.
        self._preempted_tokens = 0

    async def close(self) -> None:
        """Lets the running batch finish; queued work fails with ShuttingDown."""
        await super().close()
        self.worker.end()

    async def _process(self, batch: Sequence[Work[T, R]]) -> None:
        self._running, self._preempted_tokens = batch, 0
        await self._run(batch)
        self._running = ()
        if self._preempting is not None:
            await self._preempting

    def _on_new_work(self) -> None:
        if self._pauses and self._running and (not self._preempting or self._preempting.done()):
            self._preempting = asyncio.create_task(self._preempt())

    async def _preempt(self) -> None:
        """Runs short requests in the middle of the running batch."""
        while not self._closed and self._queue.may_preempt(self._running, self._preempted_tokens):
            if batch := self._queue.next_batch():
                await self._run(batch)
                self._preempted_tokens += sum(work.tokens for work in batch)

    async def _run(self, batch: Sequence[Work[T, R]]) -> None:
        """Runs a batch. If it fails, its parts run one by one, so that a failure affects only its own request."""
        inputs, tokens = [work.input for work in batch], sum(work.tokens for work in batch)
        tokens_per_s = self._throughput.tokens_per_s(self.model_stage)
        limit_s = max(_LIMIT_S, _SLOWDOWN * tokens / tokens_per_s) if tokens_per_s else _UNKNOWN_LIMIT_S
        try:
            results, seconds = await self.worker.call(lambda: self._run_batch(inputs), limit_s)
        except Exception as error:
            await self._split(batch, error)
            return
        self._throughput.observe(self.model_stage, tokens, seconds)
        self._complete(batch, results, seconds)

    async def _split(self, batch: Sequence[Work[T, R]], error: Exception) -> None:
        if len(batch) == 1:
            batch[0].fail(self._failure(batch[0], error))
            return
        if isinstance(error, MemoryError):
            self._halve_max_batch_tokens(batch)
        log.warning("a batch of %d failed (%r); running its parts one by one", len(batch), error)
        for work in batch:
            if not work.future.done():  # its request was cancelled
                await self._run([work])

    def _halve_max_batch_tokens(self, batch: Sequence[Work[T, R]]) -> None:
        """Limits the batches to half of the one that ran out of memory."""
        tokens = sum(work.tokens for work in batch)
        self._queue.max_batch_tokens = limit = max(1, min(self._queue.max_batch_tokens, tokens) // 2)
        log.warning("%s ran out of memory at %d tokens; limiting its batches to %d", self._name, tokens, limit)


def reason_of(error: Exception) -> str:
    """The reason of a failed batch for its request: the message of a RankerFailure; any other exception is our bug."""
    return str(error) if isinstance(error, RankerFailure) else f"{error!r}; this is a bug"


def now_s() -> float:
    """Reads the event loop's clock, which deadlines refer to."""
    return asyncio.get_running_loop().time()
