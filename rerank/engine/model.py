"""The two schedulers of a model: one prepares its input on a thread, one ranks windows on another or on a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from itertools import groupby, islice
from typing import TypeAlias, cast

from rerank.engine.request import MIN_WINDOW_TOKENS, ModelPhase, Phase, RankedWindow, Request
from rerank.engine.scheduler import Observers, Rate, Scheduler, TimedResult
from rerank.engine.strategies import Positions, Round
from rerank.engine.worker import Worker
from rerank.errors import RankerFailure
from rerank.models.batches import GPU_BATCH_TOKENS
from rerank.rankers.base import Ranker
from rerank.types import Part, Passage, PreparedTexts, Window, WindowRanking, check_rankings

#: On two cores of a Xeon, 16 PE-Rank windows of 33 positions take half the time of 16 batches, and larger batches gain
#: nothing (2026-11-21); windows of full texts are longer than this and run alone.
_CPU_BATCH_TOKENS = 512
#: Duration of a slice, in which some passages of a request are prepared.
_SLICE_S = 0.05
#: Number of tokens in a slice while the rate is not measured.
_FIRST_SLICE_TOKENS = 256
#: Largest size of a slice for an encoder, in batches. With one, uncached lists of the default model take 1.1 times as
#: long.
_SLICE_BATCHES = 4
#: Windows of a request that are encoded and queued at once; other requests run in between.
_WINDOWS_AT_ONCE = 32

#: A slice of passages to prepare for a round of a request, and windows to encode after it.
_Slice: TypeAlias = tuple[Request, Round, Sequence[int], Sequence[Positions]]
#: The prepared query and passages of a slice, and its encoded windows.
_Encoded: TypeAlias = tuple[PreparedTexts, Sequence[Window]]


class ModelSchedulers:
    """The schedulers of one model. Each model has its own, so that no model waits for another.

    Args:
        model: name of the model.
        ranker: ranker of the model.
        max_batch_tokens: largest number of tokens in a batch of windows; None for the default of the device.
        observers: called with finished batches and results.
    """

    def __init__(self, model: str, ranker: Ranker, max_batch_tokens: int | None, observers: Observers) -> None:
        self._ranker, info = ranker, ranker.info
        prepare, rank = ModelPhase(Phase.PREPARE, model), ModelPhase(Phase.RANK, model)
        self._workers = [Worker(f"prepare {model}")]
        self._preparing: Scheduler[_Slice, _Encoded]
        self._preparing = Scheduler(prepare, partial(self._workers[0].call, self._encoded), observers)
        self._ranking: Scheduler[Part, WindowRanking | None]
        if info.max_in_flight:
            calls = info.max_in_flight
            self._ranking = Scheduler(rank, self._score_on_server, observers, max_in_flight=calls, can_cancel=True)
            return
        self._workers.append(worker := Worker(f"rank {model}"))
        most = (max_batch_tokens or info.gpu_batch_tokens or _CPU_BATCH_TOKENS) if info.supports_batching else 1
        # A GPU's batches are short, and its layers are compiled.
        preempts = info.supports_preemption and info.supports_batching and not info.gpu_batch_tokens
        self._ranking = Scheduler(rank, partial(worker.call, self._scores), observers, most, can_preempt=preempts)
        if preempts:
            ranker.call_between_layers(worker.run_waiting)

    async def open(self) -> None:
        await self._ranker.open()

    @property
    def problem(self) -> str:
        """A sentence about the work that hangs; empty if none does."""
        return next((worker.problem for worker in self._workers if worker.problem), "")

    @property
    def waiting_windows(self) -> int:
        """Number of windows in the queue, without the running ones."""
        return len(self._ranking)

    def rate(self, phase: Phase) -> Rate:
        """The measured rate of a phase."""
        return (self._preparing if phase is Phase.PREPARE else self._ranking).rate

    def refuse_new_work(self) -> None:
        """Makes new work fail with ShuttingDown, and begins no further batch."""
        self._preparing.refuse_new_work()
        self._ranking.refuse_new_work()

    async def close(self) -> None:
        """Waits for the running batches; queued work fails with ShuttingDown."""
        await asyncio.gather(self._preparing.close(), self._ranking.close())
        for worker in self._workers:
            worker.end()
        await self._ranker.close()

    async def run_round(self, request: Request, round_: Round) -> list[RankedWindow]:
        """Ranks the windows of a round, 32 at a time. Before the first round, all passages are prepared.

        Raises: see `Scheduler.run`.
        """
        ranked = list[RankedWindow]()
        while len(ranked) < len(round_.windows):
            next_windows = round_.windows[len(ranked) : len(ranked) + _WINDOWS_AT_ONCE]
            windows = await self._encode(request, round_, next_windows)
            parts, tokens = list[Part](), list[int]()
            for window in windows:
                for part in window.parts or (window,):
                    parts.append(part)
                    tokens.append(max(MIN_WINDOW_TOKENS, part.tokens))
            request.add_windows(len(windows), sum(tokens))
            done = iter(await self._ranking.run(request, parts, tokens))
            for window in windows:
                ranked.append(_ranked(window, islice(done, max(1, len(window.parts)))))
        return ranked

    async def _encode(self, request: Request, round_: Round, windows: Sequence[Positions]) -> Sequence[Window]:
        """Encodes windows. Before the first ones, prepares all passages in slices, between which other requests run."""
        first, last = self._slices(request)
        for positions in first:
            await self._prepare_slice(request, round_, positions, ())
        return await self._prepare_slice(request, round_, last, windows)

    def _slices(self, request: Request) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
        """Divides the positions of passages that are not prepared into slices of `_SLICE_S`: the first ones, the last.

        If the model needs vectors, the number of tokens is limited, too, because passages that have their vectors make
        the measured rate too high. On a GPU, a slice has as many tokens as a batch.
        """
        if request.prepared:
            return (), ()
        info, cost = self._ranker.info, request.costs[self._preparing.phase.model]
        rate = self._preparing.rate.tokens_per_s
        most = _SLICE_S * rate if rate else _FIRST_SLICE_TOKENS
        if info.needs_vectors or info.needs_sparse:
            most = GPU_BATCH_TOKENS if info.gpu_batch_tokens else min(most, _SLICE_BATCHES * _CPU_BATCH_TOKENS)
        if cost.prepare <= most:
            return (), range(len(request.candidates))
        *first, last = slices(request.candidates, cost.passages, most)
        return first, last

    async def _prepare_slice(
        self, request: Request, round_: Round, positions: Sequence[int], windows: Sequence[Positions]
    ) -> Sequence[Window]:
        """Prepares a slice of the passages and encodes windows, in one call on the thread."""
        cost = request.costs[self._preparing.phase.model]
        tokens = cost.query + sum(map(cost.passages.__getitem__, positions)) + MIN_WINDOW_TOKENS * len(windows)
        (done,) = await self._preparing.run(request, [(request, round_, positions, windows)], [tokens])
        prepared, encoded = done.result
        request.add_prepared(positions, prepared, done.queue_ms, done.batch_ms)
        return encoded

    def _encoded(self, slices: Sequence[_Slice]) -> list[_Encoded]:
        """Prepares passages and encodes windows on the thread, without changing the request, which may have ended."""
        ((request, round_, positions, windows),) = slices  # a batch holds one slice
        prepared, passages = PreparedTexts(request.prepared_query, ()), request.prepared
        if positions:  # there are none after the first windows, when the query is prepared, too
            of_slice = [request.candidates[position] for position in positions]
            prepared = self._ranker.prepare(request.prepared_query, of_slice)
            passages = passages | dict(zip(positions, prepared.passages, strict=True))
        encoded = list[Window]()
        for window in windows:
            encoded.append(self._ranker.encode(request.window(round_, window, prepared.query, passages)))
        return [(prepared, encoded)]

    def _scores(self, parts: Sequence[Part]) -> Sequence[WindowRanking | None]:
        """Scores parts of windows, on the thread. Raises: RankerFailure for an invalid ranking."""
        rankings = cast(Sequence[WindowRanking | None], self._ranker.score(parts))
        # An exception here splits the batch, so that only the request with the invalid ranking fails.
        check_rankings(rankings, parts, self._ranker.info.precision)
        return rankings

    async def _score_on_server(
        self, parts: Sequence[Part], limit_s: float
    ) -> tuple[Sequence[WindowRanking | None], float]:
        start_s = time.perf_counter()
        rankings = await cast(Awaitable[Sequence[WindowRanking | None]], self._ranker.score(parts))
        check_rankings(rankings, parts, self._ranker.info.precision)
        return rankings, time.perf_counter() - start_s


def _ranked(window: Window, done: Iterable[TimedResult[WindowRanking | None]]) -> RankedWindow:
    """A ranked window from the results of its parts. The last part has the ranking."""
    ranking, ended_ms, durations = None, 0.0, set[float]()
    for part in done:
        ranking, ended_ms = part.result or ranking, max(ended_ms, part.queue_ms + part.batch_ms)
        durations.add(part.batch_ms)  # a set, because parts in the same batch have the same duration
    if ranking is None:
        raise RankerFailure("the ranker gave no ranking with the last part of a window; this is a bug")
    model_ms = sum(durations)
    return RankedWindow(window, ranking, max(0.0, ended_ms - model_ms), model_ms)


def slices(passages: Sequence[Passage], tokens: Sequence[int], max_tokens: float) -> list[list[int]]:
    """Divides the positions of passages into slices of at most `max_tokens` tokens; a longer text is a slice alone.

    Equal texts are in the same slice. Texts are ordered by length, so that batches within a slice need little padding.

    Args:
        tokens: cost of preparing each passage, in tokens.
    """
    texts = [passage.text for passage in passages]
    by_length = sorted(range(len(texts)), key=lambda position: (len(texts[position]), texts[position]))
    found, free_tokens = list[list[int]](), 0.0
    for _, same in groupby(by_length, key=texts.__getitem__):  # compares neighbours, which is faster than hashing all
        positions = list(same)
        needed = sum(tokens[position] for position in positions)
        if needed > free_tokens or not found:
            found.append([])
            free_tokens = max_tokens
        found[-1] += positions
        free_tokens -= needed
    return found
