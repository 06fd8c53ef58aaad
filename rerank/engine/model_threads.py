"""The threads of a model: one prepares passages, one renders windows, and one ranks them in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias, cast

from rerank.engine.concurrent_calls import ConcurrentCalls
from rerank.engine.estimate import passage_tokens, prepare_tokens, slices
from rerank.engine.job import MIN_WINDOW_TOKENS, Completed, ModelStage, QueuedJob, Stage
from rerank.engine.stage import Observers, QueuedStage, ThreadStage, reason_of
from rerank.engine.throughput import Throughput
from rerank.engine.worker import Worker
from rerank.errors import RankerFailure, RerankError
from rerank.models.batches import GPU_BATCH_TOKENS
from rerank.rankers.base import PausingRanker, Ranker, RankerInfo, RemoteRanker
from rerank.types import Passage, Prepared, Query, Window, WindowRanking, check_rankings

#: On two cores of a Xeon, 16 PE-Rank windows of 33 positions take half the time of 16 batches, and larger batches gain
#: nothing (2026-11-21); windows of full texts are longer than this and run alone.
_CPU_BATCH_TOKENS = 512
#: Passages are prepared in slices of about so many seconds; of so many tokens as long as no rate is measured.
_SLICE_S = 0.05
_FIRST_SLICE_TOKENS = 256
#: Batches whose tokens a slice to encode has at most. With one, cold lists of the default take 1.1 times as long.
_SLICE_BATCHES = 4
#: Seconds after which the encoding of some windows is taken to hang.
_ENCODE_LIMIT_S = 60.0

#: A window as model input, and its ranking.
RankedWindow: TypeAlias = tuple[Window, Completed[WindowRanking]]
_Slice: TypeAlias = tuple[Query, Sequence[Passage]]


class ModelThreads:
    """The three threads of one model, so that no model waits for another one's work.

    A model that runs in an inference server has concurrent calls in place of the thread for `rank`.

    Args:
        model: its name.
        max_batch_tokens: limit of a batch of windows; None: that of the device.
    """

    def __init__(
        self,
        model: str,
        ranker: Ranker | RemoteRanker,
        throughput: Throughput,
        max_batch_tokens: int | None,
        observers: Observers,
    ) -> None:
        self._model, self._ranker, self._throughput = model, ranker, throughput
        self.prepare_stage: ThreadStage[_Slice, Prepared] = ThreadStage(
            ModelStage(Stage.PREPARE, model), self._prepared, throughput, max_batch_tokens=1, observers=observers
        )
        most = max_batch_tokens or (_device_batch_tokens(ranker.info) if ranker.info.reads_together else 1)
        self.rank_stage = _rank_stage(ModelStage(Stage.RANK, model), ranker, throughput, most, observers)
        self._encoding = Worker(f"encode {model}")

    async def open(self) -> None:
        if isinstance(self._ranker, RemoteRanker):
            await self._ranker.open()
        self.prepare_stage.open()
        self.rank_stage.open()

    @property
    def problem(self) -> str:
        """A sentence about the work that hangs; empty while none does."""
        rank = self.rank_stage.worker.problem if isinstance(self.rank_stage, ThreadStage) else ""
        return self.prepare_stage.worker.problem or self._encoding.problem or rank

    @property
    def waiting_windows(self) -> int:
        """The number of windows in the queue, without those that are running."""
        return len(self.rank_stage)

    def refuse_new_work(self) -> None:
        self.prepare_stage.refuse_new_work()
        self.rank_stage.refuse_new_work()

    async def close(self) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        await asyncio.gather(self.prepare_stage.close(), self.rank_stage.close())
        self._encoding.end()
        if isinstance(self._ranker, RemoteRanker):
            await self._ranker.close()

    def slices(self, query: Query, passages: Sequence[Passage]) -> Sequence[Sequence[int]]:
        """Divides the positions of the passages into slices of about `_SLICE_S`; one slice keeps their order.

        A slice to encode is bounded, because passages with vectors make the rate look higher. A GPU gets
        a batch at least.
        """
        info = self._ranker.info
        tokens_per_s = self._throughput.tokens_per_s(self.prepare_stage.model_stage)
        most = _SLICE_S * tokens_per_s if tokens_per_s else _FIRST_SLICE_TOKENS
        if info.reads_vectors or info.reads_sparse:
            most = GPU_BATCH_TOKENS if info.gpu_batch_tokens else min(most, _SLICE_BATCHES * _CPU_BATCH_TOKENS)
        if prepare_tokens(info, query, passages) <= most:
            return [range(len(passages))]
        return slices(passages, partial(passage_tokens, info), most)

    async def prepare(self, job: QueuedJob, query: Query, passages: Sequence[Passage]) -> Completed[Prepared]:
        """Prepares the query and a slice of the passages of a job."""
        tokens = prepare_tokens(self._ranker.info, query, passages)
        (done,) = await self.prepare_stage.run(job, [(query, passages)], [tokens])
        return done

    def _prepared(self, inputs: Sequence[_Slice]) -> list[Prepared]:
        return [self._ranker.prepare(query, passages) for query, passages in inputs]

    async def encode(self, windows: Sequence[Window]) -> list[Window]:
        """Encodes on the encode thread, so that tokenizing does not block the event loop."""
        with _failures_of(self._model, "encode a window"):
            encoded, _ = await self._encoding.call(
                lambda: [self._ranker.encode(window) for window in windows], _ENCODE_LIMIT_S
            )
        return encoded

    async def rank(self, job: QueuedJob, windows: Sequence[Window]) -> list[RankedWindow]:
        """Ranks encoded windows, whose pieces wait in the queue."""
        pieces = list(chain.from_iterable(window.pieces for window in windows))
        done = iter(await self.rank_stage.run(job, pieces, [max(MIN_WINDOW_TOKENS, piece.tokens) for piece in pieces]))
        return [(window, self._ranked(window, list(islice(done, len(window.pieces))))) for window in windows]

    def _ranked(self, window: Window, done: Sequence[Completed[Any]]) -> Completed[WindowRanking]:
        """Makes the ranking of a window from the results of its pieces; its duration spans the first to the last."""
        results = [item.result for item in done]
        if window.batches is None:
            (ranking,) = results
        else:
            with _failures_of(self._model, "rank"):
                ranking = _ranking(cast(Ranker, self._ranker), window, results)
        batch_ms = sum({item.batch_ms for item in done})  # pieces in the same batch have its one duration
        queue_ms = max(0.0, max((item.queue_ms + item.batch_ms for item in done), default=0.0) - batch_ms)
        return Completed(ranking, queue_ms, batch_ms)


def queued_tokens(window: Window) -> int:
    """Sums the tokens of a window's pieces, each counted as MIN_WINDOW_TOKENS at least."""
    return sum(max(MIN_WINDOW_TOKENS, piece.tokens) for piece in window.pieces)


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
    info = ranker.info  # a GPU's batches are short, and its layers are compiled
    pauses = isinstance(ranker, PausingRanker) and info.reads_together and not info.gpu_batch_tokens
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
    check_rankings([ranking], [window], ranker.info.precision)
    return ranking


async def _rank_served(ranker: RemoteRanker, window: Window) -> WindowRanking:
    ranking = await ranker.rank_window(window)
    check_rankings([ranking], [window], ranker.info.precision)
    return ranking


def _device_batch_tokens(info: RankerInfo) -> int:
    return info.gpu_batch_tokens or _CPU_BATCH_TOKENS


@contextmanager
def _failures_of(model: str, action: str) -> Iterator[None]:
    """Raises: RankerFailure in the place of what is not a RerankError."""
    try:
        yield
    except RerankError:
        raise
    except Exception as error:
        raise RankerFailure(f"model {model} failed to {action}: {reason_of(error)}") from error
