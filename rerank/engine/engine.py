"""Engine: runs the schedules of many requests on a few models, on one event loop and three threads per model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rerank.config import EngineConfig
from rerank.engine.estimate import expected_work
from rerank.engine.job import ModelStage, QueuedJob, RankJob, Stage, timeout_at, too_many_windows
from rerank.engine.model_threads import ModelThreads, RankedWindow, queued_tokens
from rerank.engine.progress import Progress
from rerank.engine.stage import BatchObserver, Observers, ResultsObserver, now_s
from rerank.engine.strategies import Step, Walk
from rerank.engine.throughput import Throughput
from rerank.errors import Overloaded
from rerank.rankers.base import Ranker, RankerInfo, RemoteRanker
from rerank.types import Passage, Prepared, Ranking, Window

#: A request's windows are encoded and queued so many at a time; meanwhile other requests take their turns.
_WINDOWS_AT_ONCE = 32
#: The most windows of a request.
MAX_WINDOWS = 2000
#: When a refused request may come again, before any rate is measured.
_RETRY_S = 1.0


class Engine:
    """Runs requests. A model has a thread for each of `prepare`, `encode` and `rank`; all else is on the event loop.

    Queued work of a request is dropped when it is cancelled or its deadline passes. A batch, slice of passages or group
    of windows to encode that runs already is not interrupted.

    Args:
        rankers: of the models by name.
        config: settings of the queues.
        infos: descriptions of the models by name; None: those of their rankers.
    """

    def __init__(
        self,
        rankers: Mapping[str, Ranker | RemoteRanker],
        config: EngineConfig,
        infos: Mapping[str, RankerInfo] | None = None,
    ) -> None:
        self._infos = dict(infos or {model: ranker.info for model, ranker in rankers.items()})
        self._config = config
        self._throughput = Throughput()
        self._jobs: dict[QueuedJob, None] = {}  # those in work
        self._observers = Observers()
        self._threads = {model: self._threads_of(model, ranker) for model, ranker in rankers.items()}

    async def __aenter__(self) -> Engine:
        await asyncio.gather(*(threads.open() for threads in self._threads.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        for threads in self._threads.values():
            threads.refuse_new_work()
        await asyncio.gather(*(threads.close() for threads in self._threads.values()))

    async def put(self, model: str, ranker: Ranker | RemoteRanker, info: RankerInfo) -> None:
        """Gives a model another ranker, for requests from now on. Those with the former one fail with ShuttingDown."""
        threads = self._threads_of(model, ranker)
        await threads.open()
        former = self._threads[model]
        self._infos[model], self._threads[model] = info, threads
        former.refuse_new_work()
        await former.close()

    def _threads_of(self, model: str, ranker: Ranker | RemoteRanker) -> ModelThreads:
        return ModelThreads(model, ranker, self._throughput, self._config.max_batch_tokens, self._observers)

    @property
    def problems(self) -> Mapping[str, str]:
        """Model → why it does not rank at the moment, if it hangs."""
        return {model: threads.problem for model, threads in self._threads.items() if threads.problem}

    @property
    def waiting_windows(self) -> int:
        """The number of windows in the queue, without those that are running."""
        return sum(threads.waiting_windows for threads in self._threads.values())

    @property
    def queued_requests(self) -> int:
        """The number of requests in the queue, including those that are running."""
        return len(self._jobs)

    @property
    def queued_tokens(self) -> float:
        """The tokens that remain of the requests in the queue, including those that are running."""
        return sum(job.remaining_tokens(Stage.RANK) for job in self._jobs)

    def observe_batches(self, observer: BatchObserver) -> None:
        """Calls a function after each batch, on the event loop."""
        self._observers.on_batch.append(observer)

    def observe_results(self, observer: ResultsObserver) -> None:
        """Calls a function after each piece of a request's work, on the event loop and in the request's context."""
        self._observers.on_results.append(observer)

    async def run(self, job: RankJob) -> Ranking:
        """Ranks; returns the best order so far if the deadline comes first, or it fails, and the request allows that.

        Raises: InvalidRequest for a query that the ranker cannot read or too many windows; ShuttingDown; FAILURES.
        """
        queued = QueuedJob(job.share.name)
        queued.expect(expected_work(job, self._infos))
        with job.share.queueing(sum(queued.remaining.values())):
            return await self._run(job, queued)

    async def _run(self, job: RankJob, queued: QueuedJob) -> Ranking:
        """Runs the steps of a request until its deadline."""
        start_s, (order, blank) = now_s(), self._order_and_blank(job)
        progress = Progress(job, self._infos[job.steps[-1].model], order, blank)
        timeout = timeout_at(job.deadline_s - job.options.answer_margin_s)
        try:
            async with timeout:
                await asyncio.sleep(0)  # a deadline in the past ends the request before anything is prepared
                with self._in_queue(queued):
                    for step in job.steps:
                        await self._run_step(step, queued, progress)
        except Exception as error:
            return progress.answer_instead(error, timeout.expired(), _ms_since(start_s))
        return progress.ranking(_ms_since(start_s))

    @contextmanager
    def _in_queue(self, job: QueuedJob) -> Iterator[None]:
        """Counts a job during the block. Raises: Overloaded, the queue is too full for it; an empty one takes any."""
        queued, tokens = self.queued_tokens, job.remaining_tokens(Stage.RANK)
        limit = self._config.max_queue_tokens
        if queued and queued + tokens > limit:
            raise Overloaded(
                f"{queued:.0f} tokens are queued; {tokens:.0f} more exceed the limit of {limit}; try again later",
                retry_after_s=self.remaining_s or _RETRY_S,
                metadata={"exceeded": "max_queue_tokens", "queued_tokens": f"{queued:.0f}", "limit": str(limit)},
            )
        self._jobs[job] = None
        try:
            yield
        finally:
            del self._jobs[job]

    @property
    def remaining_s(self) -> float:
        """Estimates the seconds until all queued work is done. The stages run concurrently, so the slowest decides."""
        tokens: Counter[ModelStage] = Counter()
        for job in self._jobs:
            tokens.update(job.remaining)
        rates = {stage: self._throughput.tokens_per_s(stage) for stage in tokens}
        return max((tokens[stage] / rate for stage, rate in rates.items() if rate), default=0.0)

    def _order_and_blank(self, job: RankJob) -> tuple[Sequence[int], Sequence[int]]:
        """Sets passages without a text apart, unless all are so or no model reads them."""
        positions = range(len(job.candidates))
        blank = [position for position in positions if not job.candidates[position].text.strip()]
        if len(blank) == len(positions) or not any(self._infos[step.model].reads_passages for step in job.steps):
            return positions, ()
        return [position for position in positions if position not in {*blank}] if blank else positions, blank

    async def _run_step(self, step: Step, queued: QueuedJob, progress: Progress) -> None:
        """Lets a model order the candidates: drives the schedule of its strategy until that returns the order."""
        job, needed = progress.job, progress.job.window_bounds().min_windows
        info = self._infos[step.model]
        weight = step.as_run(len(progress.order)).first_stage_weight
        prepared: Prepared | None = None
        walk = Walk(step.strategy, progress.order)
        while (round_ := walk.round) is not None:
            needed = max(needed, len(progress.windows) + len(round_.windows))
            if needed > MAX_WINDOWS:
                raise too_many_windows(job, needed, MAX_WINDOWS)
            progress.order = round_.order or progress.order
            prepared = prepared or await self._prepare(step.model, queued, progress)
            windows = [progress.window(prepared, step, round_, window, weight) for window in round_.windows]
            ranked = await self._rank_round(step.model, windows, queued, progress)
            walk.advance(progress.add_round(step, round_, ranked, info))
        progress.order = walk.order

    async def _prepare(self, model: str, queued: QueuedJob, progress: Progress) -> Prepared:
        """Prepares query and passages in slices, between which others take their turns and cancellation works."""
        query, passages, threads = progress.job.query, progress.job.candidates, self._threads[model]
        ready: dict[int, Passage] = {}
        for positions in threads.slices(query, passages):
            done = await threads.prepare(queued, query, [passages[position] for position in positions])
            query = done.result.query  # later slices need not prepare it again
            ready.update(zip(positions, done.result.passages, strict=True))
            progress.add_prepared(done)
        return Prepared(query, tuple(ready[position] for position in range(len(passages))))

    async def _rank_round(
        self, model: str, windows: Sequence[Window], queued: QueuedJob, progress: Progress
    ) -> list[RankedWindow]:
        """Encodes and ranks the windows of a round, some at a time."""
        ranked = list[RankedWindow]()
        threads = self._threads[model]
        while len(ranked) < len(windows):
            encoded = await threads.encode(windows[len(ranked) : len(ranked) + _WINDOWS_AT_ONCE])
            queued.add_windows(model, list(map(queued_tokens, encoded)))
            ranked += await threads.rank(queued, encoded)
        return ranked


def _ms_since(start_s: float) -> float:
    return (now_s() - start_s) * 1000
