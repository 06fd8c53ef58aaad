"""The loop: form a batch, let its ranker order it, hand the rankings back. Owns the one model thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from rerank.config import EngineConfig
from rerank.engine.batcher import Batcher, Entry
from rerank.engine.job import Job, Progress, WindowResult, checked, window_of
from rerank.errors import DeadlineExceeded, RankerFailure, RerankError, ShuttingDown
from rerank.rankers.base import Ranker
from rerank.types import Prepared, Ranking, Window, WindowRanking
from rerank.windows import Round

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class _Waiting:
    """A window in the queue and the future that its job awaits."""

    window: Window
    future: asyncio.Future[WindowResult]
    queued_at: float


class Engine:
    """Runs jobs over rankers. Everything but the rankers runs on the event loop; they run on one thread.

    A job's own coroutine walks its strategy, so a job that is cancelled or late takes its waiting windows with
    it; the batch that is running is not interrupted.
    """

    def __init__(self, rankers: Mapping[str, Ranker], config: EngineConfig) -> None:
        self._rankers = rankers
        self._batcher: Batcher[_Waiting] = Batcher(config.max_batch_tokens, config.max_queue_tokens)
        self._model_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Engine:
        self._loop = asyncio.create_task(self._run(), name="engine")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Lets the running batch finish; what waits fails with ShuttingDown."""
        self._closed = True
        self._work.set()
        if self._loop is not None:
            await self._loop
        while batch := self._batcher.next_batch():
            for entry in batch:
                _fail(entry.payload, ShuttingDown("the service is stopping; try another replica"))
        await asyncio.to_thread(self._model_thread.shutdown)

    async def run(self, job: Job) -> Ranking:
        """The job's ranking.

        Raises:
            DeadlineExceeded: the job's deadline came first.
            Overloaded: the queue is full.
            InvalidRequest: the ranker cannot read the query.
            ShuttingDown: the engine is closing.
            RankerFailure: the model failed on a window of this job.
        """
        started = time.perf_counter()
        progress = Progress(job, self._rankers[job.model].info)
        timeout = asyncio.timeout_at(job.deadline)
        try:
            async with timeout:
                await asyncio.sleep(0)  # a deadline that has passed ends the job before anything is prepared
                order = await self._walk(job, progress)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            waited_ms = (time.perf_counter() - started) * 1000
            raise DeadlineExceeded(
                f"deadline reached after {waited_ms:.0f} ms with {len(progress.windows)} windows of "
                f"{job.strategy} done; allow more time or ask for fewer candidates",
                {"windows_done": str(len(progress.windows))},
            ) from error
        return progress.ranking(order, (time.perf_counter() - started) * 1000)

    async def _walk(self, job: Job, progress: Progress) -> list[int]:
        """Feeds the strategy its rankings until it knows the order. Each model prepares the request once."""
        prepared: dict[str, Prepared] = {}
        schedule = job.strategy.schedule(len(job.candidates))
        try:
            round_ = next(schedule)
            while True:
                model = round_.model or job.model
                if model not in prepared:
                    prepared[model] = await self._prepare(job, model, progress)
                results = await self._run_round(model, prepared[model], round_)
                progress.add_round(round_, results, self._rankers[model].info)
                round_ = schedule.send([result.ranking for result in results])
        except StopIteration as finished:
            order: list[int] = finished.value
            return order

    async def _prepare(self, job: Job, model: str, progress: Progress) -> Prepared:
        self._refuse_if_closed()
        ranker = self._rankers[model]
        passages = [candidate.passage for candidate in job.candidates]
        try:
            prepared, took_ms = await self._on_model_thread(lambda: ranker.prepare(job.query, passages))
        except RerankError:
            raise
        except Exception as error:
            log.exception("ranker %s failed to prepare a request", model)
            raise RankerFailure(f"model {model} failed to prepare: {error!r}; this is a bug") from error
        progress.add_prepared(prepared, took_ms)
        return prepared

    async def _run_round(self, model: str, prepared: Prepared, round_: Round) -> list[WindowResult]:
        """Ranks the windows of one round, which may share batches with others'."""
        futures: list[asyncio.Future[WindowResult]] = []
        try:
            for positions in round_.windows:
                futures.append(self._submit(model, window_of(prepared, positions)))
            return await asyncio.gather(*futures)
        finally:
            for future in futures:  # when one failed or the job is gone, its siblings need not run
                future.cancel()

    def _submit(self, model: str, window: Window) -> asyncio.Future[WindowResult]:
        self._refuse_if_closed()
        future: asyncio.Future[WindowResult] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(window, future, time.perf_counter())
        self._batcher.add(Entry(waiting, model, self._rankers[model].tokens(window), future.cancelled))
        self._work.set()
        return future

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ShuttingDown("the service is stopping; try another replica")

    async def _run(self) -> None:
        while not self._closed:
            if batch := self._batcher.next_batch():
                await self._step(batch)
            else:
                self._work.clear()
                await self._work.wait()

    async def _step(self, batch: Sequence[Entry[_Waiting]]) -> None:
        """Ranks one batch. If it fails, its windows run one by one, so that a failure hits its own window only."""
        try:
            await self._rank(batch)
        except Exception as error:
            if len(batch) > 1:
                log.warning("a batch of %d windows failed (%r); running them one by one", len(batch), error)
                for entry in batch:
                    if not entry.is_cancelled():
                        await self._step([entry])
            else:
                log.exception("ranker %s failed on a window", batch[0].model)
                failure = RankerFailure(f"model {batch[0].model} failed: {error!r}; this is a bug")
                failure.__cause__ = error
                _fail(batch[0].payload, failure)

    async def _rank(self, batch: Sequence[Entry[_Waiting]]) -> None:
        windows = [entry.payload.window for entry in batch]
        ranker = self._rankers[batch[0].model]
        begun = time.perf_counter()
        rankings, model_ms = await self._on_model_thread(lambda: checked(ranker.rank(windows), windows))
        for entry, ranking in zip(batch, rankings, strict=True):
            _succeed(entry, ranking, (begun - entry.payload.queued_at) * 1000, model_ms)

    async def _on_model_thread(self, work: Callable[[], T]) -> tuple[T, float]:
        """The result of `work()` and how long it ran, in milliseconds, without the wait for the thread."""

        def timed() -> tuple[T, float]:
            begun = time.perf_counter()
            return work(), (time.perf_counter() - begun) * 1000

        return await asyncio.get_running_loop().run_in_executor(self._model_thread, timed)


def _succeed(entry: Entry[_Waiting], ranking: WindowRanking, wait_ms: float, model_ms: float) -> None:
    if not entry.payload.future.done():
        entry.payload.future.set_result(WindowResult(ranking, entry.tokens, wait_ms, model_ms))


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.future.done():
        waiting.future.set_exception(error)
