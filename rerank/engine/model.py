"""The two schedulers of a model: one prepares its input on a thread, one ranks windows on another or on a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar, cast

from rerank.engine.costs import MIN_WINDOW_TOKENS, slices
from rerank.engine.request import ModelPhase, Phase, RankedWindow, Request
from rerank.engine.scheduler import Completed, Observers, Rate, Scheduler
from rerank.engine.strategies import Positions, Round
from rerank.engine.worker import Worker
from rerank.errors import RankerFailure
from rerank.models.batches import GPU_BATCH_TOKENS
from rerank.rankers.base import Part, Ranker
from rerank.types import Prepared, Window, WindowRanking, check_rankings

T = TypeVar("T")
R = TypeVar("R")

#: On two cores of a Xeon, 16 PE-Rank windows of 33 positions take half the time of 16 batches, and larger batches gain
#: nothing (2026-11-21); windows of full texts are longer than this and run alone.
_CPU_BATCH_TOKENS = 512
#: Passages are prepared in slices of about this duration; of this size as long as no rate is measured.
_SLICE_S = 0.05
_FIRST_SLICE_TOKENS = 256
#: Batches whose tokens a slice to encode has at most. With one, cold lists of the default take 1.1 times as long.
_SLICE_BATCHES = 4
#: A request's windows are encoded and queued this many at a time; meanwhile other requests take their turns.
_WINDOWS_AT_ONCE = 32

#: Prepares a slice of passages, renders windows, or does both.
_Preparing: TypeAlias = Callable[[], tuple[Prepared, Sequence[Window]]]


class ModelSchedulers:
    """The schedulers of one model, so that no model waits for another one's work.

    Args:
        model: its name.
        max_batch_tokens: limit of a batch of windows; None: the device's.
        observers: called with the work.
    """

    def __init__(self, model: str, ranker: Ranker, max_batch_tokens: int | None, observers: Observers) -> None:
        self._ranker, info = ranker, ranker.info
        prepare, rank = ModelPhase(Phase.PREPARE, model), ModelPhase(Phase.RANK, model)
        self._workers = [Worker(f"prepare {model}")]
        self._prepare: Scheduler[_Preparing, tuple[Prepared, Sequence[Window]]]
        self._prepare = Scheduler(prepare, _on_thread(self._workers[0], _call_all), observers)
        self._rank: Scheduler[Part, WindowRanking | None]
        if info.max_in_flight:
            calls = info.max_in_flight
            self._rank = Scheduler(rank, self._score_on_server, observers, max_in_flight=calls, can_cancel=True)
            return
        self._workers.append(worker := Worker(f"rank {model}"))
        most = (max_batch_tokens or info.gpu_batch_tokens or _CPU_BATCH_TOKENS) if info.supports_batching else 1
        # A GPU's batches are short, and its layers are compiled.
        preempts = info.supports_preemption and info.supports_batching and not info.gpu_batch_tokens
        self._rank = Scheduler(rank, _on_thread(worker, self._score), observers, most, can_preempt=preempts)
        if preempts:
            ranker.call_between_layers(worker.run_waiting)

    async def open(self) -> None:
        await self._ranker.open()

    @property
    def problem(self) -> str:
        """A sentence about the work that hangs; empty while none does."""
        return next((worker.problem for worker in self._workers if worker.problem), "")

    @property
    def waiting_windows(self) -> int:
        """The number of windows in the queue, without those that are running."""
        return len(self._rank)

    def rate(self, phase: Phase) -> Rate:
        """The measured rate of a phase."""
        return (self._prepare if phase is Phase.PREPARE else self._rank).rate

    def refuse_new_work(self) -> None:
        self._prepare.refuse_new_work()
        self._rank.refuse_new_work()

    async def close(self) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        await asyncio.gather(self._prepare.close(), self._rank.close())
        for worker in self._workers:
            worker.end()
        await self._ranker.close()

    async def run_round(self, request: Request, round_: Round) -> list[RankedWindow]:
        """Prepares what the round needs for the first time, and encodes and ranks its windows, some at a time."""
        ranked = list[RankedWindow]()
        while len(ranked) < len(round_.windows):
            some = round_.windows[len(ranked) : len(ranked) + _WINDOWS_AT_ONCE]
            windows = await self._encode(request, round_, some)
            parts = [part for window in windows for part in window.parts]
            tokens = [max(MIN_WINDOW_TOKENS, part.tokens) for part in parts]
            request.add_windows(len(windows), sum(tokens))
            done = iter(await self._rank.run(request, parts, tokens))
            ranked += [_ranked(window, list(islice(done, len(window.parts)))) for window in windows]
        return ranked

    async def _encode(self, request: Request, round_: Round, windows: Sequence[Positions]) -> Sequence[Window]:
        """Encodes windows. Before the first ones, prepares all passages in slices; other requests run between them."""
        first, last = self._slices(request)
        for positions in first:
            await self._run_preparing(request, round_, positions, ())
        return await self._run_preparing(request, round_, last, windows)

    def _slices(self, request: Request) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
        """Divides the positions to prepare into slices of about `_SLICE_S`; the last one is apart.

        A slice to encode is bounded, because passages with vectors make the rate look higher. A GPU gets
        a batch at least.
        """
        if request.prepared:
            return (), ()
        info, cost, rate = self._ranker.info, request.costs[self._prepare.phase.model], self._prepare.rate.tokens_per_s
        most = _SLICE_S * rate if rate else _FIRST_SLICE_TOKENS
        if info.needs_vectors or info.needs_sparse:
            most = GPU_BATCH_TOKENS if info.gpu_batch_tokens else min(most, _SLICE_BATCHES * _CPU_BATCH_TOKENS)
        if cost.prepare <= most:
            return (), range(len(request.candidates))
        *first, last = slices(request.candidates, cost.passages, most)
        return first, last

    async def _run_preparing(
        self, request: Request, round_: Round, positions: Sequence[int], windows: Sequence[Positions]
    ) -> Sequence[Window]:
        """Prepares a slice of the passages and renders windows, in one call on the thread."""
        passages = [request.candidates[position] for position in positions]

        def prepare() -> tuple[Prepared, Sequence[Window]]:
            query = request.prepared_query  # later slices need not prepare it again
            prepared = self._ranker.prepare(query, passages) if positions else Prepared(query, ())
            known = request.prepared | dict(zip(positions, prepared.passages, strict=True))
            rendered = [request.window(round_, window, prepared.query, known) for window in windows]
            return prepared, [self._ranker.encode(window) for window in rendered]

        costs = request.costs[self._prepare.phase.model]
        tokens = sum(costs.passages[position] for position in positions) + MIN_WINDOW_TOKENS * len(windows)
        (done,) = await self._prepare.run(request, [prepare], [tokens + costs.query])
        prepared, encoded = done.result
        request.add_prepared(positions, prepared, done.queue_ms, done.batch_ms)
        return encoded

    def _score(self, parts: Sequence[Part]) -> Sequence[WindowRanking | None]:
        """Scores parts here, so that a batch with a broken ranking is divided."""
        return self._checked(parts, cast(Sequence[WindowRanking | None], self._ranker.score(parts)))

    async def _score_on_server(
        self, parts: Sequence[Part], limit_s: float
    ) -> tuple[Sequence[WindowRanking | None], float]:
        start_s = time.perf_counter()
        rankings = await cast(Awaitable[Sequence[WindowRanking | None]], self._ranker.score(parts))
        return self._checked(parts, rankings), time.perf_counter() - start_s

    def _checked(
        self, parts: Sequence[Part], rankings: Sequence[WindowRanking | None]
    ) -> Sequence[WindowRanking | None]:
        found = [(ranking, part.window) for part, ranking in zip(parts, rankings, strict=True) if ranking is not None]
        check_rankings([ranking for ranking, _ in found], [window for _, window in found], self._ranker.info.precision)
        return rankings


def _ranked(window: Window, done: Sequence[Completed[WindowRanking | None]]) -> RankedWindow:
    """The last part has the ranking of a window, whose duration spans all parts."""
    ranking = next((item.result for item in reversed(done) if item.result is not None), None)
    if ranking is None:
        raise RankerFailure("the ranker gave no ranking with the last part of a window; this is a bug")
    model_ms = sum({item.batch_ms for item in done})  # parts in the same batch have its one duration
    queue_ms = max(0.0, max(item.queue_ms + item.batch_ms for item in done) - model_ms)
    return RankedWindow(window, ranking, queue_ms, model_ms)


def _on_thread(
    worker: Worker, function: Callable[[Sequence[T]], R]
) -> Callable[[Sequence[T], float], Awaitable[tuple[R, float]]]:
    return lambda inputs, limit_s: worker.call(lambda: function(inputs), limit_s)


def _call_all(functions: Sequence[_Preparing]) -> list[tuple[Prepared, Sequence[Window]]]:
    return [function() for function in functions]
