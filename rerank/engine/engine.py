"""Engine: runs the schedules of many requests on a few models, on one event loop and three threads per model."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from rerank.config import EngineConfig
from rerank.engine.admission import (
    MIN_WINDOW_TOKENS,
    AdmissionController,
    ModelStage,
    PendingRequest,
    Stage,
    Throughput,
    TokenRatio,
    WorkEstimate,
)
from rerank.engine.calls import ConcurrentCalls
from rerank.engine.job import (
    Job,
    Progress,
    WindowResult,
    passage_tokens,
    prepare_tokens,
    slices,
    too_many_windows,
    window_tokens,
)
from rerank.engine.saturation import saturating_tokens
from rerank.engine.worker import BatchObserver, QueuedStage, ResultsObserver, Worker, now_s
from rerank.errors import DeadlineExceeded, RankerFailure, RerankError
from rerank.rankers.base import InterruptibleRanker, Ranker, ServedRanker
from rerank.types import EncodedWindow, Passage, Prepared, Query, Ranking, Window, WindowRanking, check_rankings

log = logging.getLogger(__name__)

#: On two cores of a Xeon, 16 PE-Rank windows of 33 positions take half the time of 16 batches, and larger batches gain
#: nothing (2026-11-21); windows of full texts are longer than this and run alone.
_CPU_BATCH_TOKENS = 512
#: A request's windows are encoded and queued so many at a time; meanwhile other requests take their turns.
_WINDOWS_AT_ONCE = 32
#: Passages are prepared in slices of about so many seconds, at least so many tokens (as long as no rate is measured).
_SLICE_S = 0.2
_MIN_SLICE_TOKENS = 512

_Slice: TypeAlias = tuple[Query, Sequence[Passage]]


class _ModelThreads:
    """The three threads of one model, so that no model waits for another one's work.

    A model that runs in an inference server has concurrent calls in place of the thread for `rank`.
    """

    def __init__(
        self, model: str, ranker: Ranker | ServedRanker, throughput: Throughput, max_batch_tokens: int
    ) -> None:
        self._ranker = ranker
        self.prepare: Worker[_Slice, Prepared] = Worker(
            ModelStage(Stage.PREPARE, model), self._prepare, throughput, max_batch_tokens=1
        )
        self.rank = _rank_worker(ModelStage(Stage.RANK, model), ranker, throughput, max_batch_tokens)
        self.encode = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"encode {model}")

    async def open(self) -> None:
        if isinstance(self._ranker, ServedRanker):
            await self._ranker.open()
        self.prepare.open()
        self.rank.open()

    def refuse_new_work(self) -> None:
        self.prepare.refuse_new_work()
        self.rank.refuse_new_work()

    async def close(self) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        await asyncio.gather(self.prepare.close(), self.rank.close())
        await asyncio.to_thread(self.encode.shutdown)
        if isinstance(self._ranker, ServedRanker):
            await self._ranker.close()

    def _prepare(self, parts: Sequence[_Slice]) -> list[Prepared]:
        return [self._ranker.prepare(query, passages) for query, passages in parts]


def _rank_worker(
    stage: ModelStage, ranker: Ranker | ServedRanker, throughput: Throughput, max_batch_tokens: int
) -> QueuedStage[EncodedWindow, WindowRanking]:
    """The stage that ranks windows: a thread, or concurrent calls of an inference server."""
    if isinstance(ranker, ServedRanker):
        return ConcurrentCalls(stage, partial(_rank_served, ranker), throughput, ranker.max_in_flight)
    worker = Worker(stage, partial(_rank, ranker), throughput, max_batch_tokens)
    if isinstance(ranker, InterruptibleRanker) and ranker.info.batching == "packed":
        ranker.call_between_layers(worker.run_queued)
        worker.can_overtake = True
    return worker


def _rank(ranker: Ranker, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
    rankings = ranker.rank(windows)
    check_rankings(rankings, windows)
    return rankings


async def _rank_served(ranker: ServedRanker, window: EncodedWindow) -> WindowRanking:
    ranking = await ranker.rank_window(window)
    check_rankings([ranking], [window])
    return ranking


class Engine:
    """Runs jobs. Each model has a thread for each of `prepare`, `encode` and `rank`; all else is on the event loop.

    What a cancelled or late job has queued does not run. Its running batch, slice of passages or group of windows to
    encode is not interrupted.

    Attributes:
        throughput: the measured rates.
    """

    def __init__(self, rankers: Mapping[str, Ranker | ServedRanker], config: EngineConfig) -> None:
        self._rankers = rankers
        self._infos = {model: ranker.info for model, ranker in rankers.items()}
        self._config = config
        self.throughput = Throughput(config.age_factor)
        self._admission = AdmissionController(self.throughput, config.max_queue_tokens)
        self._token_ratio = TokenRatio()
        max_batch_tokens = config.max_batch_tokens or _CPU_BATCH_TOKENS
        self._threads = {
            model: _ModelThreads(model, ranker, self.throughput, max_batch_tokens) for model, ranker in rankers.items()
        }

    async def __aenter__(self) -> Engine:
        if self._config.max_batch_tokens is None:
            await asyncio.to_thread(self._choose_batch_sizes)
        await asyncio.gather(*(threads.open() for threads in self._threads.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        for threads in self._threads.values():
            threads.refuse_new_work()
        await asyncio.gather(*(threads.close() for threads in self._threads.values()))

    @property
    def waiting_windows(self) -> int:
        """The number of windows in the queue, without those that are running."""
        return sum(len(threads.rank) for threads in self._threads.values())

    def expected_tokens(self, job: Job) -> float:
        """Tokens that the models will probably read for a job."""
        return sum(WorkEstimate(job, self._infos, self._token_ratio.average).remaining().values())

    @property
    def queued_requests(self) -> int:
        """The number of admitted requests, including those that are running."""
        return len(self._admission)

    @property
    def queued_tokens(self) -> float:
        """The tokens that remain of the admitted requests."""
        return self._admission.queued_tokens

    def observe_work(self, on_batch: BatchObserver | None = None, on_results: ResultsObserver | None = None) -> None:
        """Calls these functions on the event loop after each batch, and after each piece of a request's work."""
        for threads in self._threads.values():
            for worker in (threads.prepare, threads.rank):
                worker.on_batch = on_batch or worker.on_batch
                worker.on_results = on_results or worker.on_results

    async def run(self, job: Job) -> Ranking:
        """The job's ranking; the best order so far if its deadline comes first and it allows a partial answer.

        Raises:
            DeadlineExceeded: the job missed its deadline, or would miss it.
            Overloaded: the queue is full, or would make the job late.
            InvalidRequest: the ranker cannot read the query, or the schedule needs too many windows.
            ShuttingDown: the engine is closing.
            RankerFailure: the model failed on a window of this job.
        """
        start_s = now_s()
        progress = Progress(job, self._infos[job.model])
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
            raise _deadline_reached(progress, _ms_since(start_s)) from error
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
        estimate = WorkEstimate(job, self._infos, self._token_ratio.average)
        request.remaining = estimate.remaining()
        self._admission.admit(request, now_s())
        prepared: dict[str, Prepared] = {}
        windows_needed = job.strategy.cost(len(passages)).min_windows
        schedule = job.strategy.schedule(len(passages))
        try:
            round_ = next(schedule)
            while True:
                windows_needed = max(windows_needed, len(progress.windows) + len(round_.windows))
                if windows_needed > self._config.max_windows:
                    raise too_many_windows(job, windows_needed, self._config.max_windows)
                model = round_.model or job.model
                progress.order = round_.order or progress.order
                if model not in prepared:
                    prepared[model] = await self._prepare(job.query, passages, model, request, progress)
                    estimate.mark_prepared(model)
                windows = [job.window(prepared[model], positions, round_) for positions in round_.windows]
                results: list[WindowResult] = []
                while len(results) < len(windows):
                    some = windows[len(results) : len(results) + _WINDOWS_AT_ONCE]
                    encoded = await self._encode(model, some)
                    tokens = [max(MIN_WINDOW_TOKENS, window.tokens) for window in encoded]
                    request.remaining = estimate.add_round(model, tokens)
                    if not progress.windows and not results:  # the estimate is now based on the request's own windows
                        self._admission.admit(request, now_s())
                    ranked = await self._threads[model].rank.run(request, encoded, tokens)
                    results += [WindowResult(window, *done) for window, done in zip(encoded, ranked, strict=True)]
                round_ = schedule.send(progress.add_round(round_, results, self._infos[model]))
        except StopIteration as finished:
            order: list[int] = finished.value
            return order

    async def _prepare(
        self, query: Query, passages: Sequence[Passage], model: str, request: PendingRequest, progress: Progress
    ) -> Prepared:
        """Prepares query and passages in slices, between which others take their turns and cancellation works."""
        info, worker = self._infos[model], self._threads[model].prepare
        parts: Sequence[Sequence[int]] = [range(len(passages))]
        most = max(_MIN_SLICE_TOKENS, self.throughput.tokens_in(ModelStage(Stage.PREPARE, model), _SLICE_S))
        if prepare_tokens(info, query, passages) > most:
            parts = slices(passages, lambda passage: passage_tokens(info, passage), most)
        ready: dict[int, Passage] = {}
        for positions in parts:
            some = [passages[position] for position in positions]
            (done,) = await worker.run(request, [(query, some)], [prepare_tokens(info, query, some)])
            query = done.result.query  # later slices need not prepare it again
            ready.update(zip(positions, done.result.passages, strict=True))
            progress.add_prepared(done.result, done.queue_ms, done.batch_ms)
        return Prepared(query, tuple(ready[position] for position in range(len(passages))))

    async def _encode(self, model: str, windows: Sequence[Window]) -> list[EncodedWindow]:
        """The windows as model input. Each is rendered once, here; on a thread, because it may tokenize."""
        ranker = self._rankers[model]
        try:
            encoded = await asyncio.get_running_loop().run_in_executor(
                self._threads[model].encode, lambda: [ranker.encode(window) for window in windows]
            )
        except RerankError:
            raise
        except Exception as error:
            raise RankerFailure(f"model {model} failed to encode a window: {error!r}; this is a bug") from error
        estimated = sum(window_tokens(ranker.info, window.passages, len(window.passages)) for window in windows)
        self._token_ratio.observe(model, sum(window.tokens for window in encoded), estimated)
        return encoded

    def _choose_batch_sizes(self) -> None:
        """Sets the batch size of each model on an accelerator to the one that saturates it."""
        for model, ranker in self._rankers.items():
            if isinstance(ranker, ServedRanker):
                continue  # its server forms the batches
            if ranker.info.batching == "one_by_one":
                self._threads[model].rank.set_max_batch_tokens(1)
            elif ranker.info.on_accelerator:
                tokens = saturating_tokens(ranker)
                log.info("model %s: batches of %d tokens saturate the device", model, tokens)
                self._threads[model].rank.set_max_batch_tokens(tokens)


def _deadline_reached(progress: Progress, ms: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"deadline reached after {ms:.0f} ms with {len(progress.windows)} windows of {progress.job.strategy} done; "
        "allow more time, ask for fewer candidates, or allow a partial answer",
        {"windows_done": str(len(progress.windows))},
    )


def _ms_since(start_s: float) -> float:
    return (now_s() - start_s) * 1000
