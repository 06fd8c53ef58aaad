"""Stages: a queue of work of one model, and the thread that runs its batches."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from rerank.engine.admission import Throughput, unreachable_deadline
from rerank.engine.job import Completed, Job, ModelStage, Stage, Work
from rerank.engine.preemption import Running
from rerank.engine.queue import FairQueue
from rerank.errors import RankerFailure, RerankError, ShuttingDown

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Called with a batch that has run and its duration in seconds; the futures of requests that had ended are cancelled.
BatchObserver: TypeAlias = Callable[[ModelStage, Sequence[Work[Any, Any]], float], None]
#: Called in the context of a request with the time when it submitted work (`time.perf_counter`) and the results.
ResultsObserver: TypeAlias = Callable[[ModelStage, float, Sequence[Completed[Any]]], None]


@dataclass(frozen=True)
class Observers:
    """Functions that are told of the work of the stages, on the event loop."""

    on_batch: list[BatchObserver] = field(default_factory=list)
    on_results: list[ResultsObserver] = field(default_factory=list)


class QueuedStage(ABC, Generic[T, R]):
    """One stage of a model: a queue of its work, and the loop that takes batches from it; all on the event loop.

    Args:
        model_stage: the model and the stage of all its work.
        throughput: records the duration of each batch.
        max_batch_tokens: see FairQueue.
        observers: told of its work.
    """

    def __init__(
        self, model_stage: ModelStage, throughput: Throughput, max_batch_tokens: int, observers: Observers
    ) -> None:
        self.model_stage = model_stage
        self._observers = observers
        self._name = f"{model_stage.stage.value} {model_stage.model}"
        self._throughput = throughput
        self._queue: FairQueue[Work[T, R]] = FairQueue(model_stage, throughput, max_batch_tokens)
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
            await self._loop
        while any(parts := self._queue.next_batch(now_s())):
            for work in itertools.chain(*parts):
                work.fail(shutting_down())

    async def run(self, job: Job, inputs: Sequence[T], tokens: Sequence[int]) -> list[Completed[R]]:
        """Runs pieces of a job, of so many tokens each, and returns their results. A job has one such call at a time.

        If the caller is cancelled or a piece fails, those that have not started do not run.

        Raises: ShuttingDown; DeadlineExceeded, the request would miss its deadline even if it ran alone; what the work
        raised, with RankerFailure in the place of what is no RerankError.
        """
        if self._closed:
            raise shutting_down()
        loop, submitted_s = asyncio.get_running_loop(), time.perf_counter()
        futures: list[asyncio.Future[Completed[R]]] = [loop.create_future() for _ in inputs]
        for each, size, future in zip(inputs, tokens, futures, strict=True):
            self._queue.add(Work(each, job, size, future, submitted_s))
        self._wake_up.set()
        self._on_new_work()
        try:
            results = await asyncio.gather(*futures)
            for observer in self._observers.on_results:
                observer(self.model_stage, submitted_s, results)
            return results
        finally:
            self._queue.discard(job)

    @property
    def max_batch_tokens(self) -> int:
        """The limit of a batch."""
        return self._queue.max_batch_tokens

    def set_max_batch_tokens(self, tokens: int) -> None:
        """Changes the limit of a batch; at least 1."""
        self._queue.max_batch_tokens = max(1, tokens)

    def _on_new_work(self) -> None:
        """Called when work was added to the queue."""

    async def _process_batches(self) -> None:
        while not self._closed:
            if batch := self._next_batch():
                await self._process(batch)
            else:
                self._wake_up.clear()
                await self._wake_up.wait()

    def _next_batch(self) -> list[Work[T, R]]:
        """Takes the next batch, empty if nothing waits. Late work fails."""
        batch, late = self._queue.next_batch(now_s())
        for work in late:
            work.fail(unreachable_deadline(self._throughput, work.job, now_s()))
        return batch

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
        problem = f"thread {model} failed" if stage is Stage.THREAD else f"model {model} failed to {stage.value}"
        log.error("%s", problem, exc_info=error)
        if isinstance(error, MemoryError):
            reason = f"a window of {work.tokens} tokens exceeds the memory; use a smaller window_size"
        else:
            reason = f"{error!r}; this is a bug"
        failure = RankerFailure(f"{problem}: {reason}")
        failure.__cause__ = error
        return failure


class ThreadStage(QueuedStage[T, R]):
    """A stage that runs its batches on a thread of its own.

    Args:
        model_stage, throughput, max_batch_tokens, observers: see QueuedStage.
        run: inputs of a batch → one result each, in order; called on the thread.
        is_preemptible: `run` calls `run_given` again and again while it works, see `rerank.engine.preemption`.
    """

    def __init__(
        self,
        model_stage: ModelStage,
        run: Callable[[Sequence[T]], Sequence[R]],
        throughput: Throughput,
        max_batch_tokens: int,
        observers: Observers,
        is_preemptible: bool = False,
    ) -> None:
        super().__init__(model_stage, throughput, max_batch_tokens, observers)
        self._run_batch = run
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)
        self._given: deque[tuple[Sequence[T], Future[tuple[Sequence[R], float]]]] = deque()
        #: Seconds for which the running batch has stood still, because others preempted it.
        self._paused_s = 0.0
        self._is_preemptible = is_preemptible
        self._running = Running(model_stage, (), has_ended=True)
        self._preemption: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Lets the running batch finish; queued work fails with ShuttingDown."""
        await super().close()
        await asyncio.to_thread(self._thread.shutdown)

    def run_given(self) -> None:
        """Runs the batches that were given to the thread. Called on it, also in the middle of a batch."""
        while self._given:
            inputs, done = self._given.popleft()
            start_s, paused_s, self._paused_s = time.perf_counter(), self._paused_s, 0.0
            try:
                results = self._run_batch(inputs)
                done.set_result((results, time.perf_counter() - start_s - self._paused_s))
            except BaseException as error:  # raised where the batch is awaited
                done.set_exception(error)
            self._paused_s = paused_s + time.perf_counter() - start_s

    async def _process(self, batch: Sequence[Work[T, R]]) -> None:
        self._running = Running(self.model_stage, batch)
        await self._run(batch)
        self._running.has_ended = True
        if self._preemption is not None:
            await self._preemption

    def _on_new_work(self) -> None:
        if self._is_preemptible and not self._running.has_ended and (not self._preemption or self._preemption.done()):
            self._preemption = asyncio.create_task(self._preempt())

    async def _preempt(self) -> None:
        """Runs short requests in the middle of the running batch, until none may preempt it."""
        while not self._closed and self._running.yields_to(self._queue.first()):
            if batch := self._next_batch():
                await self._run(batch)
                self._running.preempted_by += sum(work.tokens for work in batch)

    async def _run(self, batch: Sequence[Work[T, R]]) -> None:
        """Runs a batch. If it fails, its parts run one by one, so that a failure affects only its own request."""
        try:
            done: Future[tuple[Sequence[R], float]] = Future()
            self._given.append(([work.input for work in batch], done))
            self._thread.submit(self.run_given)
            results, seconds = await asyncio.wrap_future(done)
            self._throughput.observe(self.model_stage, sum(work.tokens for work in batch), seconds, now_s())
            self._complete(batch, results, seconds)
        except Exception as error:
            await self._split(batch, error)

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
        limit = min(self._queue.max_batch_tokens, tokens) // 2
        self.set_max_batch_tokens(limit)
        log.warning("%s ran out of memory at %d tokens; limiting its batches to %d", self._name, tokens, limit)


def now_s() -> float:
    """Reads the event loop's clock, which deadlines refer to."""
    return asyncio.get_running_loop().time()


def shutting_down() -> ShuttingDown:
    return ShuttingDown("the service is stopping; try another replica")
