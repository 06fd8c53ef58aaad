"""Stage: the queue of one stage of a model, by start-time fair queueing, and the thread that runs its batches."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from rerank.engine.admission import Throughput, unreachable_deadline
from rerank.engine.preemption import Queued, Running
from rerank.engine.request import Completed, ModelStage, RankRequest, Work
from rerank.errors import RankerFailure, RerankError, ShuttingDown

log = logging.getLogger(__name__)

E = TypeVar("E", bound=Queued)
T = TypeVar("T")
R = TypeVar("R")

#: The search for work that fits into a batch ends after this many requests whose next piece does not fit.
_LOOK_AHEAD = 16

_Heap: TypeAlias = list[tuple[float, int, RankRequest]]


@dataclass
class _Caller:
    """A caller's waiting requests, and its tag: the virtual time in tokens at which its next work starts."""

    tag: float = -math.inf
    #: (priority, number, request); a request may be in it several times, or have no queue any more.
    heap: _Heap = field(default_factory=list)


class FairQueue(Generic[E]):
    """The queue of a stage. It forms batches: work of the caller whose turn it is, and of others that fits beside it.

    Callers that always wait have equal shares, by start-time fair queueing (Goyal et al., 1996):

    - A caller's tag grows by the tokens that run for it, as soon as they start. Its tag and the remaining tokens of its
      first request decide on its turn: a short request goes first, and a caller that is behind catches up.
    - The virtual time is the tag of the caller that was served last. A caller that begins to wait has saved up no
      share: its tag is at least the virtual time. Half of what it is ahead is forgiven, so that a caller that asks now
      and then may have two thirds beside one that always waits. A request keeps its place between its windows.
    - The virtual time also grows with all that runs, so that no stream of new callers lets an old request starve.

    The first request of a caller is that of highest priority. The work for a batch grows with the callers that wait,
    not with their requests: these are in a heap for each caller, by the priority that they had when they were last
    queued or refreshed, and only those at its top are looked at.

    Args:
        model_stage: the model and the stage of all work.
        throughput: decides on priorities.
        max_batch_tokens: limit of a batch. Work that exceeds it runs alone: with 1000, ten windows of 100 tokens share
            a batch, and one of 1500 has its own.
    """

    def __init__(self, model_stage: ModelStage, throughput: Throughput, max_batch_tokens: int) -> None:
        self._model_stage = model_stage
        self._throughput = throughput
        self.max_batch_tokens = max_batch_tokens
        self._queues: dict[RankRequest, deque[E]] = {}
        self._callers: dict[str, _Caller] = {}
        self._virtual_time = 0.0
        self._numbers = itertools.count()  # requests of equal priority keep the order in which they came

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, work: E) -> None:
        if work.request not in self._queues:
            self._queues[work.request] = deque()
            self.refresh(work.request)
        self._queues[work.request].append(work)

    def refresh(self, request: RankRequest) -> None:
        """Computes the priority of a request again, because less of its work remains."""
        if request in self._queues:
            caller = self._callers.setdefault(request.caller, _Caller())
            if not caller.heap:
                least = request.tags.get(self._model_stage, self._virtual_time)
                caller.tag = max(least, (least + caller.tag) / 2)
            heapq.heappush(caller.heap, (self._throughput.priority(request), next(self._numbers), request))

    def discard(self, request: RankRequest) -> None:
        """Removes the work of a request."""
        self._queues.pop(request, None)

    def first(self) -> RankRequest | None:
        """The request whose turn it is; None if nothing waits."""
        heaps = self._turns()
        return heaps[0][0][2] if heaps else None

    def _turns(self) -> list[_Heap]:
        """The heap of each caller that waits, in the order of their turns."""
        for name, caller in list(self._callers.items()):
            while caller.heap and caller.heap[0][2] not in self._queues:
                heapq.heappop(caller.heap)
            if not caller.heap and caller.tag <= self._virtual_time:
                del self._callers[name]
        waiting = [caller for caller in self._callers.values() if caller.heap]
        waiting.sort(key=lambda each: each.tag + each.heap[0][2].remaining.get(self._model_stage, 0.0))
        return [each.heap for each in waiting]

    def next_batch(self, now_s: float) -> tuple[list[E], list[E]]:
        """Removes and returns the next batch, and the work of requests before it that cannot meet their deadlines.

        Both are empty if nothing waits. Work of equal priority keeps its order.
        """
        batch, late, tokens = list[E](), list[E](), 0
        heaps, heap, left_out = iter(self._turns()), _Heap(), _Heap()
        while len(left_out) < _LOOK_AHEAD and tokens < self.max_batch_tokens:
            if not (heap := heap or next(heaps, [])):
                break
            queued_priority, number, request = heapq.heappop(heap)
            if not (queue := self._queues.get(request)):
                continue
            priority = self._throughput.priority(request)
            if heap and priority > max(queued_priority, heap[0][0]):  # the measured rate has changed
                heapq.heappush(heap, (priority, number, request))
                continue
            if self._throughput.is_late(request, now_s):
                late += self._queues.pop(request)
                continue
            while queue and (not batch or tokens + queue[0].tokens <= self.max_batch_tokens):
                batch.append(queue.popleft())
                tokens += batch[-1].tokens
            if queue:
                left_out.append((priority, number, request))
            else:
                del self._queues[request]
        for each in left_out:
            heapq.heappush(self._callers[each[2].caller].heap, each)
        self._charge(batch)
        return batch, late

    def _charge(self, batch: Sequence[E]) -> None:
        """Counts the tokens of a batch that starts as used by its callers."""
        for work in batch:
            caller = self._callers[work.request.caller]
            self._virtual_time = max(self._virtual_time, caller.tag) + self._throughput.age_factor * work.tokens
            caller.tag += work.tokens
            work.request.tags[self._model_stage] = caller.tag


#: Called with a batch that has run and its duration in seconds; the futures of requests that had ended are cancelled.
BatchObserver: TypeAlias = Callable[[ModelStage, Sequence[Work[Any, Any]], float], None]
#: Called in the context of a request with the time when it submitted work (`time.perf_counter`) and the results.
ResultsObserver: TypeAlias = Callable[[ModelStage, float, Sequence[Completed[Any]]], None]


class QueuedStage(ABC, Generic[T, R]):
    """One stage of a model: a queue of its work, and the loop that takes batches from it; all on the event loop.

    Args:
        model_stage: the model and the stage of all its work.
        throughput: records the duration of each batch.
        max_batch_tokens: see FairQueue.

    Attributes:
        model_stage: see above.
        on_batch, on_results: see their types; they do nothing unless they are set.
    """

    def __init__(self, model_stage: ModelStage, throughput: Throughput, max_batch_tokens: int) -> None:
        self.model_stage = model_stage
        self._name = f"{model_stage.stage.value} {model_stage.model}"
        self._throughput = throughput
        self._queue: FairQueue[Work[T, R]] = FairQueue(model_stage, throughput, max_batch_tokens)
        self._wake_up = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False
        self.on_batch: BatchObserver = lambda stage, batch, seconds: None
        self.on_results: ResultsObserver = lambda stage, submitted_s, results: None

    def __len__(self) -> int:
        """The number of pieces of work in the queue."""
        return len(self._queue)

    def open(self) -> None:
        self._loop = asyncio.create_task(self._process_batches(), name=self._name)

    def refuse_new_work(self) -> None:
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

    async def run(self, request: RankRequest, inputs: Sequence[T], tokens: Sequence[int]) -> list[Completed[R]]:
        """The results of a request's work, with the tokens of each piece. A request has one such call at a time.

        If the caller is cancelled or a piece fails, those that have not started do not run.

        Raises: ShuttingDown; DeadlineExceeded, the request would miss its deadline even if it ran alone; what the work
        raised, with RankerFailure in the place of what is no RerankError.
        """
        if self._closed:
            raise shutting_down()
        loop, submitted_s = asyncio.get_running_loop(), time.perf_counter()
        futures: list[asyncio.Future[Completed[R]]] = [loop.create_future() for _ in inputs]
        for each, size, future in zip(inputs, tokens, futures, strict=True):
            self._queue.add(Work(each, request, size, future, submitted_s))
        self._wake_up.set()
        self._on_new_work()
        try:
            results = await asyncio.gather(*futures)
            self.on_results(self.model_stage, submitted_s, results)
            return results
        finally:
            self._queue.discard(request)

    @property
    def max_batch_tokens(self) -> int:
        """The limit of a batch."""
        return self._queue.max_batch_tokens

    def set_max_batch_tokens(self, tokens: int) -> None:
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
        """The next batch, empty if nothing waits. What is late fails."""
        batch, late = self._queue.next_batch(now_s())
        for work in late:
            work.fail(unreachable_deadline(self._throughput, work.request, now_s()))
        return batch

    @abstractmethod
    async def _process(self, batch: Sequence[Work[T, R]]) -> None:
        """Runs or starts a batch, and returns when the next one may follow."""

    def _complete(self, batch: Sequence[Work[T, R]], results: Sequence[R], seconds: float) -> None:
        """Hands the results of a batch over, which took so many seconds."""
        ended_s = time.perf_counter()
        for work, result in zip(batch, results, strict=True):
            work.request.subtract(self.model_stage, work.tokens)
            if not work.future.done():
                queue_ms = (ended_s - work.submitted_s - seconds) * 1000
                work.future.set_result(Completed(result, queue_ms, seconds * 1000))
        for request in dict.fromkeys(work.request for work in batch):
            self._queue.refresh(request)
        self.on_batch(self.model_stage, batch, seconds)

    def _failure(self, work: Work[T, R], error: Exception) -> Exception:
        if isinstance(error, RerankError):
            return error
        problem = f"model {self.model_stage.model} failed to {self.model_stage.stage.value}"
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
        model_stage, throughput, max_batch_tokens: see QueuedStage.
        run: inputs of a batch → one result each, in order; called on the thread.

    Attributes:
        is_preemptible: `run` calls `run_given` again and again while it works, see `rerank.engine.preemption`.
    """

    def __init__(
        self,
        model_stage: ModelStage,
        run: Callable[[Sequence[T]], Sequence[R]],
        throughput: Throughput,
        max_batch_tokens: int,
    ) -> None:
        super().__init__(model_stage, throughput, max_batch_tokens)
        self._run_batch = run
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)
        self._given: deque[tuple[Sequence[T], Future[tuple[Sequence[R], float]]]] = deque()
        #: Seconds for which the running batch has stood still, because others preempted it.
        self._paused_s = 0.0
        self.is_preemptible = False
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
        if self.is_preemptible and not self._running.has_ended and (not self._preemption or self._preemption.done()):
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
    """The event loop's clock, which deadlines refer to."""
    return asyncio.get_running_loop().time()


def shutting_down() -> ShuttingDown:
    return ShuttingDown("the service is stopping; try another replica")
