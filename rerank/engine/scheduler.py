"""Scheduler: the queue of one phase of a model's work, and its running batches, in this process or on a server."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from rerank.engine.queue import FairQueue
from rerank.engine.request import ModelPhase, Request
from rerank.engine.worker import shutting_down
from rerank.errors import RankerFailure, RerankError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Least time after which a batch counts as hanging.
_LIMIT_S = 60.0
#: That time if the expected time of the batch is not known.
_UNKNOWN_LIMIT_S = 600.0
#: A batch whose expected time is known counts as hanging only if it takes this many times as long.
_SLOWDOWN = 20
#: Time for which the close of the engine waits for running batches.
_CLOSE_S = 5.0
#: Seconds of work, the latest ones, over which a rate is averaged.
_AVERAGED_S = 2.0


class TimedResult(NamedTuple, Generic[R]):
    """A result, with its time in the queue and the duration of its batch in milliseconds."""

    result: R
    queue_ms: float
    batch_ms: float


@dataclass(frozen=True, eq=False)
class Work(Generic[T, R]):
    """A piece of a request's work, such as one window, and the future of its result.

    Attributes:
        tokens: size of the piece in a batch, at least 1.
        submitted_s: time of `time.perf_counter` at which it was queued.
    """

    input: T
    request: Request
    tokens: int
    future: asyncio.Future[TimedResult[R]]
    submitted_s: float

    def fail(self, error: Exception) -> None:
        """Ends the work with an error, unless its request has ended."""
        if not self.future.done():
            self.future.set_exception(error)


#: Called with the phase, a batch that has run, and its duration in seconds. Futures of ended requests are cancelled.
BatchObserver: TypeAlias = Callable[[ModelPhase, Sequence[Work[Any, Any]], float], None]
#: Called in the context of a request: (phase, time of `time.perf_counter` at which it submitted work, the results).
ResultsObserver: TypeAlias = Callable[[ModelPhase, float, Sequence[TimedResult[Any]]], None]
#: (inputs of a batch, seconds until it counts as hanging) → a result for each input, and the duration in seconds.
RunBatch: TypeAlias = Callable[[Sequence[T], float], Awaitable[tuple[Sequence[R], float]]]


@dataclass(frozen=True)
class Observers:
    """Functions that are called with the work of all models, on the event loop."""

    on_batch: list[BatchObserver] = field(default_factory=list)
    on_results: list[ResultsObserver] = field(default_factory=list)


class Rate:
    """Tokens per second of all batches together while any of them runs.

    The sizes of slices, time limits and retry times depend on it. A batch is weighted by its duration, so that a batch
    that is small, with a fixed cost for the most part, or without anything to compute hardly changes the rate.

    Attributes:
        is_warm: whether a batch has run.
        tokens_per_s: the rate; None before it is measured.
    """

    def __init__(self) -> None:
        self.is_warm = False
        self.tokens_per_s: float | None = None
        # Sums over the batches, in which older batches have exponentially smaller weights.
        self._tokens, self._seconds = 0.0, 0.0

    def observe(self, tokens: float, seconds: float) -> None:
        """Adds a batch to the rate. The first batch does not count, because it warms the model up."""
        if not self.is_warm:
            self.is_warm = True
            return
        keep = math.exp(-seconds / _AVERAGED_S)
        self._tokens, self._seconds = keep * self._tokens + tokens, keep * self._seconds + seconds
        self.tokens_per_s = self._tokens / self._seconds if self._seconds else None


class Scheduler(Generic[T, R]):
    """Takes batches from a fair queue and runs them. Its methods are called on the event loop.

    If the model can be preempted, a short request runs in the middle of a long batch:

        event loop                                  thread of the model
        batch A (long) is given to the thread   →   A: layer 1
        request B (short) is queued                    layer 2
        B has less than half of A's work        →   B: all of its layers
        B is answered                           ←      layer 3 of A

    Args:
        phase: the phase of the scheduled work.
        run_batch: runs a batch on a thread, or on a server.
        observers: called with finished batches and results.
        max_batch_tokens: see FairQueue.
        max_in_flight: largest number of batches at a time.
        can_preempt: whether `run_batch` can run a batch in the middle of a running batch.
        can_cancel: whether a running batch is cancelled when all requests with work in it have ended.
    """

    def __init__(
        self,
        phase: ModelPhase,
        run_batch: RunBatch[T, R],
        observers: Observers,
        max_batch_tokens: int = 1,
        max_in_flight: int = 1,
        can_preempt: bool = False,
        can_cancel: bool = False,
    ) -> None:
        self.phase = phase
        self._run_batch, self._observers, self._max_in_flight = run_batch, observers, max_in_flight
        self._can_preempt, self._can_cancel = can_preempt, can_cancel
        self._queue: FairQueue[Work[T, R]] = FairQueue(phase, max_batch_tokens)
        #: Task → its running batch. A task runs one batch after the other.
        self._tasks: dict[asyncio.Task[None], Sequence[Work[T, R]]] = {}
        self._running: list[Sequence[Work[T, R]]] = []
        #: Number of tokens that have preempted the first of the running batches.
        self._preempted_tokens = 0
        self._closed = False
        self.rate = Rate()
        #: Time of `time.perf_counter` up to which batches are counted in the rate.
        self._rated_until_s = 0.0

    def __len__(self) -> int:
        """Number of pieces of work in the queue."""
        return len(self._queue)

    def refuse_new_work(self) -> None:
        """Makes new work fail with ShuttingDown, and begins no further batch."""
        self._closed = True

    async def close(self) -> None:
        """Waits for the running batches; queued work fails with ShuttingDown."""
        self.refuse_new_work()
        if self._tasks:
            await asyncio.wait({*self._tasks}, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()  # the model hangs
        while batch := self._queue.next_batch():
            for work in batch:
                work.fail(shutting_down())

    async def run(self, request: Request, inputs: Sequence[T], tokens: Sequence[int]) -> list[TimedResult[R]]:
        """Runs pieces of work of a request, and returns their results. A request has one such call at a time.

        If the caller is cancelled or a piece fails, pieces that have not started do not run.

        Args:
            tokens: size of each input.

        Raises:
            ShuttingDown: the scheduler is closed, or closes before the work is done.
            RerankError: the work raised it; RankerFailure if it raised any other exception.
        """
        if self._closed:
            raise shutting_down()
        loop, submitted_s = asyncio.get_running_loop(), time.perf_counter()
        futures = list[asyncio.Future[TimedResult[R]]]()
        for item, size in zip(inputs, tokens, strict=True):
            futures.append(loop.create_future())
            self._queue.add(Work(item, request, size, futures[-1], submitted_s))
            self._start_task()
        try:
            results = [await futures[0]] if len(futures) == 1 else await asyncio.gather(*futures)
        except BaseException:
            self._queue.discard(request)
            for future in futures:
                future.cancel()  # another piece has failed, or the caller is cancelled
            if self._can_cancel:
                for task, batch in self._tasks.items():
                    if batch and all(work.future.done() for work in batch):
                        task.cancel()
            raise
        for observer in self._observers.on_results:
            observer(self.phase, submitted_s, results)
        return results

    def _start_task(self, ended: asyncio.Task[None] | None = None) -> None:
        """Starts a task for new work. Its first batch has all work that is queued in this turn of the event loop."""
        if ended is not None:
            del self._tasks[ended]
        if not self._closed and len(self._queue) and len(self._tasks) < self._max_in_flight + self._can_preempt:
            task = asyncio.create_task(self._run_batches())
            self._tasks[task] = ()
            task.add_done_callback(self._start_task)

    async def _run_batches(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while batch := self._next_batch():
            if not self._running:
                self._rated_until_s = time.perf_counter()
            self._tasks[task] = batch
            self._running.append(batch)
            try:
                await self._run(batch, self.rate.is_warm)
            finally:
                self._tasks[task] = ()
                is_first = self._running[0] is batch
                self._running.remove(batch)
                self._preempted_tokens = 0 if is_first else self._preempted_tokens + sum(work.tokens for work in batch)

    def _next_batch(self) -> Sequence[Work[T, R]]:
        """Takes the next batch from the queue; empty if no further batch may run."""
        running = self._running
        if self._closed or len(running) > self._max_in_flight:
            return ()
        if len(running) == self._max_in_flight and not self._queue.may_preempt(running[0], self._preempted_tokens):
            return ()
        return self._queue.next_batch()

    async def _run(self, batch: Sequence[Work[T, R]], is_warm: bool) -> None:
        """Runs a batch. If it fails, its pieces run one by one, so that only requests whose own piece fails do."""
        inputs, tokens = list[T](), 0
        for work in batch:
            inputs.append(work.input)
            tokens += work.tokens
        tokens_per_s = self.rate.tokens_per_s
        limit_s = max(_LIMIT_S, _SLOWDOWN * tokens / tokens_per_s) if tokens_per_s else _UNKNOWN_LIMIT_S
        try:
            results, seconds = await self._run_batch(inputs, limit_s)
        except asyncio.CancelledError:
            for work in batch:
                work.fail(shutting_down())
            raise
        except Exception as error:
            await self._split(batch, error, is_warm)
            return
        self._measure(tokens, is_warm)
        self._complete(batch, results, seconds)

    async def _split(self, batch: Sequence[Work[T, R]], error: Exception, is_warm: bool) -> None:
        if len(batch) == 1:
            batch[0].fail(self._failure(batch[0], error))
            return
        if isinstance(error, MemoryError):
            self._halve_max_batch_tokens(batch)
        log.warning("a batch of %d failed (%r); running its parts one by one", len(batch), error)
        for work in batch:
            if not work.future.done():  # it is done if its request was cancelled
                await self._run([work], is_warm)

    def _halve_max_batch_tokens(self, batch: Sequence[Work[T, R]]) -> None:
        """Limits batches to half of the tokens of a batch that ran out of memory."""
        tokens = sum(work.tokens for work in batch)
        self._queue.max_batch_tokens = limit = max(1, min(self._queue.max_batch_tokens, tokens) // 2)
        phase, model = self.phase
        log.warning(
            "%s %s ran out of memory at %d tokens; limiting its batches to %d", phase.value, model, tokens, limit
        )

    def _measure(self, tokens: int, is_warm: bool) -> None:
        """Adds a batch to the rate, with the time since its start, or since a concurrent batch was added."""
        seconds = time.perf_counter() - self._rated_until_s
        self._rated_until_s += seconds
        if is_warm or not self.rate.is_warm:
            self.rate.observe(tokens, seconds)

    def _complete(self, batch: Sequence[Work[T, R]], results: Sequence[R], seconds: float) -> None:
        """Resolves the futures of a batch that took `seconds`."""
        ended_s, requests = time.perf_counter(), dict[Request, None]()
        for work, result in zip(batch, results, strict=True):
            remaining = work.request.remaining
            remaining[self.phase] = max(0.0, remaining.get(self.phase, 0.0) - work.tokens)
            requests[work.request] = None
            if not work.future.done():
                queue_ms = (ended_s - work.submitted_s - seconds) * 1000
                work.future.set_result(TimedResult(result, queue_ms, seconds * 1000))
        for request in requests:
            self._queue.refresh(request)
        for observer in self._observers.on_batch:
            observer(self.phase, batch, seconds)

    def _failure(self, work: Work[T, R], error: Exception) -> Exception:
        if isinstance(error, RerankError):
            return error
        phase, model = self.phase
        log.error("model %s failed to %s", model, phase.value, exc_info=error)
        if isinstance(error, MemoryError):
            reason = f"a window of {work.tokens} tokens exceeds the memory; use a smaller window_size"
        else:
            reason = reason_of(error)
        failure = RankerFailure(f"model {model} failed to {phase.value}: {reason}")
        failure.__cause__ = error
        return failure


def reason_of(error: Exception) -> str:
    """Why work failed: the message of a RankerFailure, or the exception and that it is a bug."""
    return str(error) if isinstance(error, RankerFailure) else f"{error!r}; this is a bug"
