"""Engine: runs the schedules of many requests on a few models, on one event loop and three threads."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from rerank.config import EngineConfig
from rerank.engine.admission import (
    AdmissionController,
    PassageTokens,
    PendingRequest,
    Stage,
    Throughput,
    WorkEstimate,
    prepare_tokens,
)
from rerank.engine.job import Job, Progress, WindowResult, window_of
from rerank.engine.saturation import saturating_tokens
from rerank.engine.worker import Completed, Worker
from rerank.errors import DeadlineExceeded, RankerFailure, RerankError
from rerank.rankers.base import Ranker
from rerank.types import EncodedWindow, Passage, Prepared, Query, Ranking, Window, WindowRanking, check_rankings

log = logging.getLogger(__name__)

#: On two cores of a Xeon, 16 PE-Rank windows of 33 positions take half the time of 16 batches, and larger batches gain
#: nothing (2026-11-21); windows of full texts are longer than this and run alone.
_CPU_BATCH_TOKENS = 512

_Request: TypeAlias = tuple[Query, Sequence[Passage]]


class Engine:
    """Runs jobs. `prepare`, `encode` and `rank` of the rankers have one thread each; all else runs on the event loop.

    The windows of a job that is cancelled or late leave the queue; a running batch is not interrupted.

    Attributes:
        throughput: the measured rates.
    """

    def __init__(self, rankers: Mapping[str, Ranker], config: EngineConfig) -> None:
        self._rankers = rankers
        self._config = config
        self.throughput = Throughput(config.age_factor)
        self._admission = AdmissionController(self.throughput, config.max_queue_tokens)
        self._passage_tokens = PassageTokens()
        self._prepare_worker: Worker[_Request, Prepared] = Worker(Stage.PREPARE, self._run_prepare, self.throughput, 1)
        self._rank_worker: Worker[EncodedWindow, WindowRanking] = Worker(
            Stage.RANK, self._run_rank, self.throughput, config.max_batch_tokens or _CPU_BATCH_TOKENS
        )
        self._encode_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encode")

    async def __aenter__(self) -> Engine:
        if self._config.max_batch_tokens is None:
            await asyncio.to_thread(self._choose_batch_sizes)
        self._prepare_worker.open()
        self._rank_worker.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        workers = self._prepare_worker, self._rank_worker
        for worker in workers:
            worker.refuse_new_work()
        await asyncio.gather(*(worker.close() for worker in workers))
        await asyncio.to_thread(self._encode_thread.shutdown)

    @property
    def waiting_windows(self) -> int:
        """The number of windows in the queue, without those that are running."""
        return len(self._rank_worker)

    async def run(self, job: Job) -> Ranking:
        """The job's ranking; the best order so far if its deadline comes first and it allows a partial answer.

        Raises:
            DeadlineExceeded: the job missed its deadline, or would miss it.
            Overloaded: the queue is full, or would make the job late.
            InvalidRequest: the ranker cannot read the query.
            ShuttingDown: the engine is closing.
            RankerFailure: the model failed on a window of this job.
        """
        start_s = _now_s()
        progress = Progress(job, self._rankers[job.model].info)
        request = PendingRequest(start_s, math.inf if job.deadline is None or job.allow_partial else job.deadline)
        timeout = asyncio.timeout_at(self._answer_at(job))
        try:
            async with timeout:
                await asyncio.sleep(0)  # a deadline in the past ends the job before anything is prepared
                order = await self._run_schedule(job, request, progress)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            if job.allow_partial:
                return progress.partial_ranking(_ms_since(start_s))
            raise DeadlineExceeded(
                f"deadline reached after {_ms_since(start_s):.0f} ms with {len(progress.windows)} windows of "
                f"{job.strategy} done; allow more time, ask for fewer candidates, or allow a partial answer",
                {"windows_done": str(len(progress.windows))},
            ) from error
        finally:
            self._admission.release(request)
        return progress.ranking(order, _ms_since(start_s))

    def _answer_at(self, job: Job) -> float | None:
        """When to stop; earlier than the deadline for a partial answer, so that it reaches the caller in time."""
        if job.deadline is None or not job.allow_partial:
            return job.deadline
        return job.deadline - self._config.answer_margin_s

    async def _run_schedule(self, job: Job, request: PendingRequest, progress: Progress) -> list[int]:
        """Ranks the rounds of the strategy until it returns the final order. Each model prepares the job once."""
        passages = [candidate.passage for candidate in job.candidates]
        estimate = WorkEstimate(job.strategy, job.model, job.query, passages, self._passage_tokens.average)
        request.remaining = estimate.remaining()
        self._admission.admit(request, _now_s())
        prepared: dict[str, Prepared] = {}
        schedule = job.strategy.schedule(len(passages))
        try:
            round_ = next(schedule)
            while True:
                model = round_.model or job.model
                progress.order = round_.order or progress.order
                if model not in prepared:
                    prepared[model] = await self._prepare(job.query, passages, model, request, progress)
                    estimate.mark_prepared(model)
                windows = [
                    window_of(prepared[model], positions, round_.top_n(positions, job.top_n))
                    for positions in round_.windows
                ]
                encoded = await self._encode(model, windows)
                request.remaining = estimate.add_round(model, [window.tokens for window in encoded])
                if not progress.windows:  # the estimate is now based on the request's own windows
                    self._admission.admit(request, _now_s())
                results = await self._rank(model, request, encoded)
                rankings = progress.add_round(round_, results, self._rankers[model].info)
                round_ = schedule.send(rankings)
        except StopIteration as finished:
            order: list[int] = finished.value
            return order

    async def _prepare(
        self, query: Query, passages: Sequence[Passage], model: str, request: PendingRequest, progress: Progress
    ) -> Prepared:
        tokens = prepare_tokens(query, passages)
        completed = await self._prepare_worker.submit(request, model, (query, passages), tokens)
        progress.add_prepared(completed.result, completed.queue_ms, completed.batch_ms)
        return completed.result

    async def _encode(self, model: str, windows: Sequence[Window]) -> list[EncodedWindow]:
        """The windows as model input. Each is rendered once, here; on a thread, because it may tokenize."""
        ranker = self._rankers[model]
        try:
            encoded = await asyncio.get_running_loop().run_in_executor(
                self._encode_thread, lambda: [ranker.encode(window) for window in windows]
            )
        except RerankError:
            raise
        except Exception as error:
            raise RankerFailure(f"model {model} failed to encode a window: {error!r}; this is a bug") from error
        self._passage_tokens.observe(
            model, [window.tokens for window in encoded], [len(window.passages) for window in windows]
        )
        return encoded

    async def _rank(self, model: str, request: PendingRequest, windows: Sequence[EncodedWindow]) -> list[WindowResult]:
        """Ranks the windows of one round, which may share batches with those of other jobs."""
        futures: list[asyncio.Future[Completed[WindowRanking]]] = []
        try:
            for window in windows:
                futures.append(self._rank_worker.submit(request, model, window, max(1, window.tokens)))
            results = await asyncio.gather(*futures)
        finally:
            for future in futures:  # if one failed or the job is cancelled, the others need not run
                future.cancel()
        return [
            WindowResult(window, completed.result, completed.queue_ms, completed.batch_ms)
            for window, completed in zip(windows, results, strict=True)
        ]

    def _run_prepare(self, model: str, requests: Sequence[_Request]) -> list[Prepared]:
        return [self._rankers[model].prepare(query, passages) for query, passages in requests]

    def _run_rank(self, model: str, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        rankings = self._rankers[model].rank(windows)
        check_rankings(rankings, windows)
        return rankings

    def _choose_batch_sizes(self) -> None:
        """Sets the batch size of each model on an accelerator to the one that saturates it."""
        for model, ranker in self._rankers.items():
            if ranker.info.batching == "one_by_one":
                self._rank_worker.set_max_batch_tokens(model, 1)
            elif ranker.info.on_accelerator:
                tokens = saturating_tokens(ranker)
                log.info("model %s: batches of %d tokens saturate the device", model, tokens)
                self._rank_worker.set_max_batch_tokens(model, tokens)


def _now_s() -> float:
    """The event loop's clock, which deadlines refer to."""
    return asyncio.get_running_loop().time()


def _ms_since(start_s: float) -> float:
    return (_now_s() - start_s) * 1000
