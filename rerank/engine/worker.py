"""Worker: one thread that runs batches of one stage of the engine, and the queue from which the batches are formed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from rerank.engine.admission import ModelStage, PendingRequest, Stage, Throughput, unreachable_deadline
from rerank.errors import RankerFailure, RerankError, ShuttingDown

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class QueueEntry(Generic[T]):
    """Work of a request that waits for a batch, such as one window."""

    payload: T
    request: PendingRequest
    model_stage: ModelStage
    #: Its share of a batch's `max_batch_tokens`, 1 or more.
    tokens: int
    #: Asked when a batch is formed; cancelled work does not run.
    is_cancelled: Callable[[], bool]


class Batcher(Generic[T]):
    """A queue that forms batches: the entry of highest priority, and others of the same model that fit beside it.

    Args:
        throughput: decides on priorities.
        max_batch_tokens: limit of a batch, for models without a limit of their own. An entry that exceeds it runs
            alone: with 1000, ten windows of 100 tokens share a batch, and one of 1500 has its own.
    """

    def __init__(self, throughput: Throughput, max_batch_tokens: int) -> None:
        self._throughput = throughput
        self._default_max_tokens = max_batch_tokens
        self._max_tokens: dict[ModelStage, int] = {}
        self._queue: list[QueueEntry[T]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def max_batch_tokens(self, model_stage: ModelStage) -> int:
        return self._max_tokens.get(model_stage, self._default_max_tokens)

    def set_max_batch_tokens(self, model_stage: ModelStage, tokens: int) -> None:
        self._max_tokens[model_stage] = max(1, tokens)

    def add(self, entry: QueueEntry[T]) -> None:
        self._queue.append(entry)

    def pop_late(self, now_s: float) -> list[QueueEntry[T]]:
        """Removes and returns the entries of requests that can no longer meet their deadlines."""
        queue = [entry for entry in self._queue if not entry.is_cancelled()]
        late = [self._throughput.is_late(entry.request, now_s) for entry in queue]
        self._queue = [entry for entry, is_late in zip(queue, late, strict=True) if not is_late]
        return [entry for entry, is_late in zip(queue, late, strict=True) if is_late]

    def next_batch(self) -> list[QueueEntry[T]]:
        """Removes and returns the next batch, empty if nothing waits. Entries of equal priority keep their order."""
        queue = [entry for entry in self._queue if not entry.is_cancelled()]
        queue.sort(key=lambda entry: self._throughput.priority(entry.request))
        batch: list[QueueEntry[T]] = []
        rest: list[QueueEntry[T]] = []
        tokens = 0
        for entry in queue:
            if not batch or (
                entry.model_stage == batch[0].model_stage
                and tokens + entry.tokens <= self.max_batch_tokens(entry.model_stage)
            ):
                batch.append(entry)
                tokens += entry.tokens
            else:
                rest.append(entry)
        self._queue = rest
        return batch


@dataclass(frozen=True)
class Completed(Generic[R]):
    """A result with its time in the queue and the duration of its batch."""

    result: R
    queue_ms: float
    batch_ms: float


@dataclass(frozen=True, eq=False)
class _Submission(Generic[T, R]):
    """Submitted work, and the future of its result."""

    work: T
    future: asyncio.Future[Completed[R]]
    submitted_s: float


class Worker(Generic[T, R]):
    """Runs the batches of one stage on its own thread; queue and results are handled on the event loop.

    Args:
        stage: the stage of all its work.
        run: (model, work of a batch) → one result each, in order; called on the worker's thread.
        throughput: records the duration of each batch.
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
        self._batcher: Batcher[_Submission[T, R]] = Batcher(throughput, max_batch_tokens)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=stage.value)
        self._wake_up = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """The length of the queue."""
        return len(self._batcher)

    def open(self) -> None:
        self._loop = asyncio.create_task(self._run_batches(), name=self._stage.value)

    def refuse_new_work(self) -> None:
        self._closed = True
        self._wake_up.set()

    async def close(self) -> None:
        """Lets the running batch finish; queued work fails with ShuttingDown."""
        self.refuse_new_work()
        if self._loop is not None:
            await self._loop
        while batch := self._batcher.next_batch():
            for entry in batch:
                _fail(entry, ShuttingDown("the service is stopping; try another replica"))
        await asyncio.to_thread(self._thread.shutdown)

    def submit(self, request: PendingRequest, model: str, work: T, tokens: int) -> asyncio.Future[Completed[R]]:
        """Queues the work. Returns the future of its result; if that is cancelled in time, the work does not run.

        Raises:
            ShuttingDown: the worker is closing. The future raises it too, and
            DeadlineExceeded: the request would miss its deadline even if it ran alone.
            RankerFailure: the work failed. Any RerankError that it raises is passed on instead.
        """
        if self._closed:
            raise ShuttingDown("the service is stopping; try another replica")
        future: asyncio.Future[Completed[R]] = asyncio.get_running_loop().create_future()
        submission = _Submission(work, future, time.perf_counter())
        self._batcher.add(QueueEntry(submission, request, ModelStage(self._stage, model), tokens, future.cancelled))
        self._wake_up.set()
        return future

    def set_max_batch_tokens(self, model: str, tokens: int) -> None:
        self._batcher.set_max_batch_tokens(ModelStage(self._stage, model), tokens)

    async def _run_batches(self) -> None:
        while not self._closed:
            now_s = _now_s()
            for entry in self._batcher.pop_late(now_s):
                _fail(entry, unreachable_deadline(self._throughput, entry.request, now_s))
            if batch := self._batcher.next_batch():
                await self._run_or_split(batch)
            else:
                self._wake_up.clear()
                await self._wake_up.wait()

    async def _run_or_split(self, batch: Sequence[QueueEntry[_Submission[T, R]]]) -> None:
        """Runs a batch. If it fails, its entries run one by one, so that a failure affects only its own request."""
        try:
            await self._run(batch)
        except Exception as error:
            if len(batch) > 1:
                if isinstance(error, MemoryError):
                    self._halve_max_batch_tokens(batch)
                log.warning("a batch of %d failed (%r); running its entries one by one", len(batch), error)
                for entry in batch:
                    if not entry.is_cancelled():
                        await self._run_or_split([entry])
            else:
                _fail(batch[0], self._failure(batch[0], error))

    async def _run(self, batch: Sequence[QueueEntry[_Submission[T, R]]]) -> None:
        model_stage, tokens = batch[0].model_stage, sum(entry.tokens for entry in batch)
        start_s = time.perf_counter()
        results, seconds = await self._run_on_thread(model_stage.model, [entry.payload.work for entry in batch])
        self._throughput.observe(model_stage, tokens, seconds, _now_s())
        for entry, result in zip(batch, results, strict=True):
            entry.request.subtract(model_stage, entry.tokens)
            queue_ms = (start_s - entry.payload.submitted_s) * 1000
            if not entry.payload.future.done():
                entry.payload.future.set_result(Completed(result, queue_ms, seconds * 1000))

    async def _run_on_thread(self, model: str, work: Sequence[T]) -> tuple[Sequence[R], float]:
        """The results and the seconds they took, without the wait for the thread."""

        def timed() -> tuple[Sequence[R], float]:
            start_s = time.perf_counter()
            return self._run_batch(model, work), time.perf_counter() - start_s

        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    def _halve_max_batch_tokens(self, batch: Sequence[QueueEntry[_Submission[T, R]]]) -> None:
        """Limits the batches of a model to half of the one that ran out of memory."""
        model_stage, tokens = batch[0].model_stage, sum(entry.tokens for entry in batch)
        limit = min(self._batcher.max_batch_tokens(model_stage), tokens) // 2
        self._batcher.set_max_batch_tokens(model_stage, limit)
        log.warning("%s ran out of memory at %d tokens; limiting its batches to %d", model_stage.model, tokens, limit)

    def _failure(self, entry: QueueEntry[_Submission[T, R]], error: Exception) -> Exception:
        if isinstance(error, RerankError):
            return error
        model = entry.model_stage.model
        log.error("model %s failed to %s", model, self._stage.value, exc_info=error)
        if isinstance(error, MemoryError):
            problem = f"a window of {entry.tokens} tokens exceeds the memory; use a smaller window_size"
        else:
            problem = f"{error!r}; this is a bug"
        failure = RankerFailure(f"model {model} failed to {self._stage.value}: {problem}")
        failure.__cause__ = error
        return failure


def _now_s() -> float:
    """The event loop's clock, which deadlines refer to."""
    return asyncio.get_running_loop().time()


def _fail(entry: QueueEntry[_Submission[T, R]], error: Exception) -> None:
    if not entry.payload.future.done():
        entry.payload.future.set_exception(error)
