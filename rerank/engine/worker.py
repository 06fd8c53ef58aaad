"""One thread and what waits for it: form a batch, run it, hand the results back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from rerank.engine.admission import hopeless
from rerank.engine.batcher import Batcher, Entry
from rerank.engine.throughput import Lane, Stage, Task, Throughput
from rerank.errors import RankerFailure, RerankError, ShuttingDown

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Done(Generic[R]):
    """A result, how long its work waited, and how long the batch ran that it was part of."""

    result: R
    wait_ms: float
    work_ms: float


@dataclass(frozen=True, eq=False)
class _Waiting(Generic[T, R]):
    """The work, and the future that its request awaits."""

    work: T
    future: asyncio.Future[Done[R]]
    queued_at: float


class Worker(Generic[T, R]):
    """Runs one stage. Everything but the work itself happens on the event loop.

    Args:
        stage: what the worker is for.
        run: (model, works) → one result each, in order; called on the worker's thread.
        throughput: is told how long batches take.
        max_batch_tokens: see Batcher.
    """

    def __init__(
        self,
        stage: Stage,
        run: Callable[[str, Sequence[T]], Sequence[R]],
        throughput: Throughput,
        max_batch_tokens: int,
    ) -> None:
        self._stage = stage
        self._run_batch = run
        self._throughput = throughput
        self._batcher: Batcher[_Waiting[T, R]] = Batcher(throughput, max_batch_tokens)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=stage.value)
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """How much waits."""
        return len(self._batcher)

    def open(self) -> None:
        self._loop = asyncio.create_task(self._run(), name=self._stage.value)

    def refuse_new_work(self) -> None:
        self._closed = True
        self._work.set()

    async def close(self) -> None:
        """Lets the running batch finish; what waits fails with ShuttingDown."""
        self.refuse_new_work()
        if self._loop is not None:
            await self._loop
        while batch := self._batcher.next_batch(_now_s()):
            for entry in batch:
                _fail(entry, ShuttingDown("the service is stopping; try another replica"))
        await asyncio.to_thread(self._thread.shutdown)

    def submit(self, task: Task, model: str, work: T, tokens: int) -> asyncio.Future[Done[R]]:
        """The result to come. Cancel it, and the work never begins.

        Raises:
            ShuttingDown: the worker is closing. The future raises it too, and
            DeadlineExceeded: the task would be late even if nobody else were there.
            RankerFailure: the work failed; RerankErrors that it raised come through.
        """
        if self._closed:
            raise ShuttingDown("the service is stopping; try another replica")
        future: asyncio.Future[Done[R]] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(work, future, time.perf_counter())
        self._batcher.add(Entry(waiting, task, Lane(self._stage, model), tokens, future.cancelled))
        self._work.set()
        return future

    def set_budget(self, model: str, tokens: int) -> None:
        self._batcher.set_budget(Lane(self._stage, model), tokens)

    async def _run(self) -> None:
        while not self._closed:
            now_s = _now_s()
            for entry in self._batcher.drop_late(now_s):
                _fail(entry, hopeless(self._throughput, entry.task, now_s))
            if batch := self._batcher.next_batch(now_s):
                await self._step(batch)
            else:
                self._work.clear()
                await self._work.wait()

    async def _step(self, batch: Sequence[Entry[_Waiting[T, R]]]) -> None:
        """Runs one batch. If it fails, its parts run one by one, so that a failure hits its own request only."""
        try:
            await self._finish(batch)
        except Exception as error:
            if len(batch) > 1:
                if isinstance(error, MemoryError):
                    self._halve_budget(batch)
                log.warning("a batch of %d failed (%r); running them one by one", len(batch), error)
                for entry in batch:
                    if not entry.is_cancelled():
                        await self._step([entry])
            else:
                _fail(batch[0], self._failure(batch[0], error))

    async def _finish(self, batch: Sequence[Entry[_Waiting[T, R]]]) -> None:
        lane, tokens = batch[0].lane, sum(entry.tokens for entry in batch)
        begun = time.perf_counter()
        results, seconds = await self._on_thread(lane.model, [entry.payload.work for entry in batch])
        self._throughput.observe(lane, tokens, seconds, _now_s())
        for entry, result in zip(batch, results, strict=True):
            entry.task.done(lane, entry.tokens)
            _succeed(entry, Done(result, (begun - entry.payload.queued_at) * 1000, seconds * 1000))

    async def _on_thread(self, model: str, works: Sequence[T]) -> tuple[Sequence[R], float]:
        """The results and how long they took, without the wait for the thread."""

        def timed() -> tuple[Sequence[R], float]:
            begun = time.perf_counter()
            return self._run_batch(model, works), time.perf_counter() - begun

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    def _halve_budget(self, batch: Sequence[Entry[_Waiting[T, R]]]) -> None:
        """After running out of memory: half of what the batch held."""
        lane, tokens = batch[0].lane, sum(entry.tokens for entry in batch)
        budget = min(self._batcher.budget(lane), tokens) // 2
        self._batcher.set_budget(lane, budget)
        log.warning("%s ran out of memory at %d tokens; its batches hold at most %d now", lane.model, tokens, budget)

    def _failure(self, entry: Entry[_Waiting[T, R]], error: Exception) -> Exception:
        if isinstance(error, RerankError):
            return error
        log.error("model %s failed to %s", entry.lane.model, self._stage.value, exc_info=error)
        if isinstance(error, MemoryError):
            problem = f"a window of {entry.tokens} tokens exceeds the memory; use a smaller window_size"
        else:
            problem = f"{error!r}; this is a bug"
        failure = RankerFailure(f"model {entry.lane.model} failed to {self._stage.value}: {problem}")
        failure.__cause__ = error
        return failure


def _now_s() -> float:
    """The event loop's clock, on which deadlines are."""
    return asyncio.get_running_loop().time()


def _succeed(entry: Entry[_Waiting[T, R]], done: Done[R]) -> None:
    if not entry.payload.future.done():
        entry.payload.future.set_result(done)


def _fail(entry: Entry[_Waiting[T, R]], error: Exception) -> None:
    if not entry.payload.future.done():
        entry.payload.future.set_exception(error)
