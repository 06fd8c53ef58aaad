"""Engine: runs the schedules of many requests on a few models, on one event loop and three threads per model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias, cast

from rerank.config import EngineConfig
from rerank.engine.admission import AdmissionController
from rerank.engine.concurrent_calls import ConcurrentCalls
from rerank.engine.estimate import expected_work, passage_tokens, prepare_tokens, window_tokens
from rerank.engine.job import (
    MIN_WINDOW_TOKENS,
    Completed,
    ModelStage,
    QueuedJob,
    RankJob,
    Stage,
    timeout_at,
    too_many_windows,
)
from rerank.engine.progress import Progress, RankedWindow
from rerank.engine.slices import slices
from rerank.engine.stage import BatchObserver, Observers, QueuedStage, ResultsObserver, ThreadStage, now_s
from rerank.engine.strategies import Step, Walk
from rerank.engine.throughput import Throughput
from rerank.engine.worker import Worker
from rerank.errors import RankerFailure, RerankError
from rerank.rankers.base import PausingRanker, Ranker, RankerInfo, RemoteRanker
from rerank.types import Passage, Prepared, Query, Ranking, Window, WindowRanking, check_rankings

#: On two cores of a Xeon, 16 PE-Rank windows of 33 positions take half the time of 16 batches, and larger batches gain
#: nothing (2026-11-21); windows of full texts are longer than this and run alone. On a GPU, the default of
#: text-embeddings-inference.
_CPU_BATCH_TOKENS, _GPU_BATCH_TOKENS = 512, 16_384
#: A request's windows are encoded and queued so many at a time; meanwhile other requests take their turns.
_WINDOWS_AT_ONCE = 32
#: Passages are prepared in slices of about so many seconds; of so many tokens as long as no rate is measured.
_SLICE_S = 0.05
_FIRST_SLICE_TOKENS = 256

#: Seconds after which the encoding of some windows is taken to hang.
_ENCODE_LIMIT_S = 60.0
#: The most windows of a request.
MAX_WINDOWS = 2000

_Slice: TypeAlias = tuple[Query, Sequence[Passage]]


class _ModelThreads:
    """The three threads of one model, so that no model waits for another one's work.

    A model that runs in an inference server has concurrent calls in place of the thread for `rank`.
    """

    def __init__(
        self,
        model: str,
        ranker: Ranker | RemoteRanker,
        throughput: Throughput,
        max_batch_tokens: int,
        observers: Observers,
    ) -> None:
        self._ranker = ranker
        self.prepare: ThreadStage[_Slice, Prepared] = ThreadStage(
            ModelStage(Stage.PREPARE, model), self._prepare, throughput, max_batch_tokens=1, observers=observers
        )
        self.rank = _rank_stage(ModelStage(Stage.RANK, model), ranker, throughput, max_batch_tokens, observers)
        self.encode = Worker(f"encode {model}")

    async def open(self) -> None:
        if isinstance(self._ranker, RemoteRanker):
            await self._ranker.open()
        self.prepare.open()
        self.rank.open()

    @property
    def problem(self) -> str:
        """A sentence about the work that hangs; empty while none does."""
        rank = self.rank.worker.problem if isinstance(self.rank, ThreadStage) else ""
        return self.prepare.worker.problem or self.encode.problem or rank

    def refuse_new_work(self) -> None:
        self.prepare.refuse_new_work()
        self.rank.refuse_new_work()

    async def close(self) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        await asyncio.gather(self.prepare.close(), self.rank.close())
        self.encode.end()
        if isinstance(self._ranker, RemoteRanker):
            await self._ranker.close()

    def _prepare(self, inputs: Sequence[_Slice]) -> list[Prepared]:
        return [self._ranker.prepare(query, passages) for query, passages in inputs]


def _rank_stage(
    model_stage: ModelStage,
    ranker: Ranker | RemoteRanker,
    throughput: Throughput,
    max_batch_tokens: int,
    observers: Observers,
) -> QueuedStage[Any, Any]:
    """Makes the stage that reads pieces of windows: a thread, or concurrent calls of an inference server."""
    if isinstance(ranker, RemoteRanker):
        return ConcurrentCalls(model_stage, partial(_rank_served, ranker), throughput, ranker.max_in_flight, observers)
    pauses = isinstance(ranker, PausingRanker) and ranker.info.batching == "packed"
    stage = ThreadStage(model_stage, partial(_read, ranker), throughput, max_batch_tokens, observers, pauses)
    if isinstance(ranker, PausingRanker) and pauses:
        ranker.call_between_layers(stage.worker.run_waiting)
    return stage


def _read(ranker: Ranker, pieces: Sequence[Any]) -> list[Any]:
    """Reads pieces. A window that is one piece is ranked here, so that a batch with a broken ranking is divided."""
    results = zip(pieces, ranker.read(pieces), strict=True)
    return [_ranking(ranker, piece, [result]) if isinstance(piece, Window) else result for piece, result in results]


def _ranking(ranker: Ranker, window: Window, results: Sequence[Any]) -> WindowRanking:
    ranking = ranker.ranking(window, results)
    check_rankings([ranking], [window])
    return ranking


async def _rank_served(ranker: RemoteRanker, window: Window) -> WindowRanking:
    ranking = await ranker.rank_window(window)
    check_rankings([ranking], [window])
    return ranking


class Engine:
    """Runs requests. A model has a thread for each of `prepare`, `encode` and `rank`; all else is on the event loop.

    Queued work of cancelled or late requests is dropped. A batch, slice of passages or group of windows to encode that
    runs already is not interrupted.

    Args:
        rankers: of the models by name.
        config: settings of the queues.
        infos: descriptions of the models by name; None: those of their rankers.

    Attributes:
        throughput: the measured rates.
    """

    def __init__(
        self,
        rankers: Mapping[str, Ranker | RemoteRanker],
        config: EngineConfig,
        infos: Mapping[str, RankerInfo] | None = None,
    ) -> None:
        self._rankers = dict(rankers)
        self._infos = dict(infos or {model: ranker.info for model, ranker in rankers.items()})
        self._config = config
        self.throughput = Throughput()
        self._admission = AdmissionController(self.throughput, config.max_queue_tokens)
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
        self._rankers[model], self._infos[model], self._threads[model] = ranker, info, threads
        former.refuse_new_work()
        await former.close()

    def _threads_of(self, model: str, ranker: Ranker | RemoteRanker) -> _ModelThreads:
        return _ModelThreads(model, ranker, self.throughput, self._batch_tokens(ranker.info), self._observers)

    @property
    def problems(self) -> Mapping[str, str]:
        """Model → why it does not rank at the moment, if it hangs."""
        return {model: threads.problem for model, threads in self._threads.items() if threads.problem}

    @property
    def waiting_windows(self) -> int:
        """The number of windows in the queue, without those that are running."""
        return sum(len(threads.rank) for threads in self._threads.values())

    @property
    def queued_requests(self) -> int:
        """The number of admitted requests, including those that are running."""
        return len(self._admission)

    @property
    def queued_tokens(self) -> float:
        """The tokens that remain of the admitted requests."""
        return self._admission.queued_tokens

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
        end_s = job.deadline_s - (self._config.answer_margin_s if job.options.is_answered_late else 0.0)
        queued = QueuedJob(job.share.name, now_s(), math.inf if job.options.allow_partial else end_s)
        queued.expect(expected_work(job, self._infos, self.throughput.token_ratio))
        with job.share.queueing(sum(queued.remaining.values())):
            return await self._run(job, queued, end_s)

    async def _run(self, job: RankJob, queued: QueuedJob, end_s: float) -> Ranking:
        """Admits a job and runs the steps of its request until `end_s`."""
        order, blank = self._order_and_blank(job)
        progress = Progress(job, self._infos[job.steps[-1].model], order, blank)
        timeout = timeout_at(end_s)
        try:
            async with timeout:
                await asyncio.sleep(0)  # a deadline in the past ends the request before anything is prepared
                self._admission.admit(queued, now_s())
                for step in job.steps:
                    await self._run_step(step, queued, progress)
        except Exception as error:
            return progress.answer_instead(error, timeout.expired(), _ms_since(queued.arrived_s))
        finally:
            self._admission.release(queued)
        return progress.ranking(_ms_since(queued.arrived_s))

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
        weight = 0.0 if step.warning(len(job.candidates)) else step.first_stage_weight
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
        job, info = progress.job, self._infos[model]
        query, passages = job.query, job.candidates
        ready: dict[int, Passage] = {}
        for positions in self._slices(model, job):
            some = [passages[position] for position in positions]
            tokens = prepare_tokens(info, query, some)
            (done,) = await self._threads[model].prepare.run(queued, [(query, some)], [tokens])
            query = done.result.query  # later slices need not prepare it again
            ready.update(zip(positions, done.result.passages, strict=True))
            progress.add_prepared(done)
        return Prepared(query, tuple(ready[position] for position in range(len(passages))))

    def _slices(self, model: str, job: RankJob) -> Sequence[Sequence[int]]:
        """Divides the positions of the passages into slices of about `_SLICE_S`; one slice keeps their order.

        A slice to encode is not larger than a batch, whatever rate was measured on passages with vectors.
        """
        info, passages = self._infos[model], job.candidates
        most = self.throughput.tokens_in(ModelStage(Stage.PREPARE, model), _SLICE_S) or _FIRST_SLICE_TOKENS
        if info.reads_vectors or info.reads_sparse:
            most = min(most, _device_batch_tokens(info))
        if prepare_tokens(info, job.query, passages) <= most:
            return [range(len(passages))]
        return slices(passages, partial(passage_tokens, info), most)

    async def _rank_round(
        self, model: str, windows: Sequence[Window], queued: QueuedJob, progress: Progress
    ) -> list[RankedWindow]:
        """Encodes and ranks the windows of a round, some at a time."""
        ranked = list[RankedWindow]()
        while len(ranked) < len(windows):
            encoded = await self._encode(model, queued, windows[len(ranked) : len(ranked) + _WINDOWS_AT_ONCE])
            pieces = [window.pieces for window in encoded]
            tokens = [[max(MIN_WINDOW_TOKENS, piece.tokens) for piece in own] for own in pieces]
            queued.add_windows(model, list(map(sum, tokens)))
            if not progress.windows and not ranked:  # the estimate is now based on the request's own windows
                self._admission.admit(queued, now_s())
            done = iter(await self._threads[model].rank.run(queued, list(chain(*pieces)), list(chain(*tokens))))
            ranked += [self._ranked(model, window, done) for window in encoded]
        return ranked

    def _ranked(self, model: str, window: Window, done: Iterator[Completed[Any]]) -> RankedWindow:
        """Makes the ranking of a window from the results of its pieces; it took the time from first to last."""
        own = list(islice(done, len(window.pieces)))
        results = [item.result for item in own]
        if window.batches is None:
            (ranking,) = results
        else:
            with _failures_of(model, "rank"):
                ranking = _ranking(cast(Ranker, self._rankers[model]), window, results)
        batch_ms = sum({item.batch_ms for item in own})  # pieces in the same batch have its one duration
        queue_ms = max(0.0, max((item.queue_ms + item.batch_ms for item in own), default=0.0) - batch_ms)
        return window, Completed(ranking, queue_ms, batch_ms)

    async def _encode(self, model: str, queued: QueuedJob, windows: Sequence[Window]) -> list[Window]:
        """Encodes on the encode thread, so that tokenizing does not block the event loop."""
        ranker = self._rankers[model]
        with _failures_of(model, "encode a window"):
            encoded, _ = await self._threads[model].encode.call(
                lambda: [ranker.encode(window) for window in windows], _ENCODE_LIMIT_S
            )
        estimated = sum(window_tokens(ranker.info, window.passages, len(window.passages)) for window in windows)
        self.throughput.observe_tokens(model, queued, sum(window.tokens for window in encoded), estimated)
        return encoded

    def _batch_tokens(self, info: RankerInfo) -> int:
        return self._config.max_batch_tokens or (1 if info.batching == "one_by_one" else _device_batch_tokens(info))


def _device_batch_tokens(info: RankerInfo) -> int:
    return _GPU_BATCH_TOKENS if info.on_accelerator else _CPU_BATCH_TOKENS


@contextmanager
def _failures_of(model: str, action: str) -> Iterator[None]:
    """Raises: RankerFailure in the place of what is not a RerankError."""
    try:
        yield
    except RerankError:
        raise
    except Exception as error:
        raise RankerFailure(f"model {model} failed to {action}: {error!r}; this is a bug") from error


def _ms_since(start_s: float) -> float:
    return (now_s() - start_s) * 1000
