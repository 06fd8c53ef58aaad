"""Many requests over few models: each job's coroutine walks its strategy, two threads do the work."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from rerank.config import EngineConfig
from rerank.engine.admission import Admission
from rerank.engine.estimate import PassageTokens, WorkEstimate, prepare_tokens
from rerank.engine.job import Job, Progress, WindowResult, window_of
from rerank.engine.saturation import saturating_tokens
from rerank.engine.throughput import Stage, Task, Throughput
from rerank.engine.worker import Done, Worker
from rerank.errors import DeadlineExceeded, RankerFailure, RerankError
from rerank.rankers.base import Ranker, checked
from rerank.types import Passage, Prepared, Query, Ranking, Window, WindowRanking

log = logging.getLogger(__name__)

#: On two cores of a Xeon, 16 PE-Rank windows of 33 positions take half the time of 16 batches, and more gain nothing
#: (2026-11-21); windows of full texts are longer than this and run alone.
_CPU_BATCH_TOKENS = 512

_Request: TypeAlias = tuple[Query, Sequence[Passage]]


class Engine:
    """Runs jobs over rankers. `prepare`, `rank` and `tokens` have a thread each, the rest is on the event loop.

    A job that is cancelled or late takes its waiting windows with it; the batch that is running is not interrupted.

    Attributes:
        throughput: the measured rates.
    """

    def __init__(self, rankers: Mapping[str, Ranker], config: EngineConfig) -> None:
        self._rankers = rankers
        self._config = config
        self.throughput = Throughput(config.age_factor)
        self._admission = Admission(self.throughput, config.max_queue_tokens)
        self._passage_tokens = PassageTokens()
        self._prepare_worker: Worker[_Request, Prepared] = Worker(Stage.PREPARE, self._prepare_all, self.throughput, 1)
        max_batch_tokens = config.max_batch_tokens or _CPU_BATCH_TOKENS
        self._rank_worker: Worker[Window, WindowRanking] = Worker(
            Stage.RANK, self._rank_all, self.throughput, max_batch_tokens
        )
        self._token_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokens")

    async def __aenter__(self) -> Engine:
        if self._config.max_batch_tokens is None:
            await asyncio.to_thread(self._calibrate)
        self._prepare_worker.open()
        self._rank_worker.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Lets what is running finish; what waits fails with ShuttingDown."""
        workers = self._prepare_worker, self._rank_worker
        for worker in workers:
            worker.refuse_new_work()
        await asyncio.gather(*(worker.close() for worker in workers))
        await asyncio.to_thread(self._token_thread.shutdown)

    @property
    def waiting_windows(self) -> int:
        """How many wait for a batch, not those that run."""
        return len(self._rank_worker)

    async def run(self, job: Job) -> Ranking:
        """The job's ranking; the best so far, when its deadline comes and it allows a partial answer.

        Raises:
            DeadlineExceeded: the job's deadline came first, or would.
            Overloaded: the queue is full, or would make the job late.
            InvalidRequest: the ranker cannot read the query.
            ShuttingDown: the engine is closing.
            RankerFailure: the model failed on a window of this job.
        """
        begun_s = _now_s()
        progress = Progress(job, self._rankers[job.model].info)
        task = Task(begun_s, math.inf if job.deadline is None or job.allow_partial else job.deadline)
        timeout = asyncio.timeout_at(self._answer_at(job))
        try:
            async with timeout:
                await asyncio.sleep(0)  # a deadline that has passed ends the job before anything is prepared
                order = await self._walk(job, task, progress)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            if job.allow_partial:
                return progress.partial_ranking(_ms_since(begun_s))
            raise DeadlineExceeded(
                f"deadline reached after {_ms_since(begun_s):.0f} ms with {len(progress.windows)} windows of "
                f"{job.strategy} done; allow more time, ask for fewer candidates, or allow a partial answer",
                {"windows_done": str(len(progress.windows))},
            ) from error
        finally:
            self._admission.leave(task)
        return progress.ranking(order, _ms_since(begun_s))

    def _answer_at(self, job: Job) -> float | None:
        """When to stop: a partial answer must still reach the caller before the deadline."""
        if job.deadline is None or not job.allow_partial:
            return job.deadline
        return job.deadline - self._config.answer_margin_s

    async def _walk(self, job: Job, task: Task, progress: Progress) -> list[int]:
        """Feeds the strategy its rankings until it knows the order. Each model prepares the request once."""
        passages = [candidate.passage for candidate in job.candidates]
        estimate = WorkEstimate(job.strategy, job.model, passages, self._passage_tokens.average)
        task.left = estimate.left()
        self._admission.admit(task, _now_s())
        prepared: dict[str, Prepared] = {}
        schedule = job.strategy.schedule(len(passages))
        try:
            round_ = next(schedule)
            while True:
                model = round_.model or job.model
                progress.order = round_.order or progress.order
                if model not in prepared:
                    prepared[model] = await self._prepare(job.query, passages, model, task, progress)
                    estimate.prepared(model)
                windows = [
                    window_of(prepared[model], positions, round_.top_n(positions, job.top_n))
                    for positions in round_.windows
                ]
                tokens = await self._count(model, windows)
                task.left = estimate.left_with(model, tokens)
                if not progress.windows:  # the estimate stands on the request's own windows now
                    self._admission.admit(task, _now_s())
                results = await self._run_round(model, task, windows, tokens)
                progress.add_round(round_, results, self._rankers[model].info)
                round_ = schedule.send([result.ranking for result in results])
        except StopIteration as finished:
            order: list[int] = finished.value
            return order

    async def _prepare(
        self, query: Query, passages: Sequence[Passage], model: str, task: Task, progress: Progress
    ) -> Prepared:
        done = await self._prepare_worker.submit(task, model, (query, passages), prepare_tokens(passages))
        progress.add_prepared(done.result, done.wait_ms, done.work_ms)
        return done.result

    async def _count(self, model: str, windows: Sequence[Window]) -> list[int]:
        """The windows' tokens; on a thread, because it may tokenize."""
        ranker = self._rankers[model]
        try:
            tokens = await asyncio.get_running_loop().run_in_executor(
                self._token_thread, lambda: [ranker.tokens(window) for window in windows]
            )
        except RerankError:
            raise
        except Exception as error:
            raise RankerFailure(f"model {model} failed to count tokens: {error!r}; this is a bug") from error
        self._passage_tokens.observe(model, tokens, [len(window.passages) for window in windows])
        return tokens

    async def _run_round(
        self, model: str, task: Task, windows: Sequence[Window], tokens: Sequence[int]
    ) -> list[WindowResult]:
        """Ranks the windows of one round, which may share batches with others'."""
        futures: list[asyncio.Future[Done[WindowRanking]]] = []
        try:
            for window, own in zip(windows, tokens, strict=True):
                futures.append(self._rank_worker.submit(task, model, window, max(1, own)))
            results = await asyncio.gather(*futures)
        finally:
            for future in futures:  # when one failed or the job is gone, its siblings need not run
                future.cancel()
        return [
            WindowResult(done.result, own, done.wait_ms, done.work_ms)
            for done, own in zip(results, tokens, strict=True)
        ]

    def _prepare_all(self, model: str, requests: Sequence[_Request]) -> list[Prepared]:
        return [self._rankers[model].prepare(query, passages) for query, passages in requests]

    def _rank_all(self, model: str, windows: Sequence[Window]) -> Sequence[WindowRanking]:
        return checked(self._rankers[model].rank(windows), windows)

    def _calibrate(self) -> None:
        """Gives each model the batch that saturates its device; without a configured size only."""
        for model, ranker in self._rankers.items():
            if ranker.info.batching == "one_by_one":
                self._rank_worker.set_budget(model, 1)
            elif ranker.info.on_accelerator:
                tokens = saturating_tokens(ranker)
                log.info("model %s: batches of %d tokens saturate the device", model, tokens)
                self._rank_worker.set_budget(model, tokens)


def _now_s() -> float:
    """The event loop's clock, on which deadlines are."""
    return asyncio.get_running_loop().time()


def _ms_since(begun_s: float) -> float:
    return (_now_s() - begun_s) * 1000
