"""Engine: runs the schedules of many requests on a few models, on one event loop and two threads per model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from rerank.config import EngineConfig
from rerank.engine.answer import answer_after_failure, ranking_of
from rerank.engine.model import ModelSchedulers
from rerank.engine.request import ModelPhase, Phase, Request, timeout_at
from rerank.engine.scheduler import BatchObserver, Observers, ResultsObserver
from rerank.engine.strategies import RankStage
from rerank.errors import InvalidRequest, Overloaded
from rerank.rankers.base import Ranker, RankerInfo
from rerank.types import Ranking

#: The most windows of a request.
MAX_WINDOWS = 2000
#: When a refused request may come again, before any rate is measured.
_RETRY_S = 1.0


class Engine:
    """Runs requests. A model prepares its input on one thread and ranks on another; all else is on the event loop.

    Queued work of a request is dropped when it is cancelled or its deadline passes. A batch or a slice of passages that
    runs already is not interrupted.

    Args:
        rankers: of the models by name.
        config: settings of the queues.
        infos: descriptions of the models by name; None: the rankers' own.
    """

    def __init__(
        self, rankers: Mapping[str, Ranker], config: EngineConfig, infos: Mapping[str, RankerInfo] | None = None
    ) -> None:
        self._infos = dict(infos or {model: ranker.info for model, ranker in rankers.items()})
        self._config = config
        self._requests: dict[Request, None] = {}  # those in work
        self._observers = Observers()
        self._models = {model: self._schedulers_of(model, ranker) for model, ranker in rankers.items()}

    async def __aenter__(self) -> Engine:
        await asyncio.gather(*(model.open() for model in self._models.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Lets the running batches finish; queued work fails with ShuttingDown."""
        for model in self._models.values():
            model.refuse_new_work()
        await asyncio.gather(*(model.close() for model in self._models.values()))

    async def put(self, model: str, ranker: Ranker, info: RankerInfo) -> None:
        """Gives a model another ranker, for requests from now on. Those with the former one fail with ShuttingDown."""
        schedulers = self._schedulers_of(model, ranker)
        await schedulers.open()
        former = self._models[model]
        self._infos[model], self._models[model] = info, schedulers
        former.refuse_new_work()
        await former.close()

    def _schedulers_of(self, model: str, ranker: Ranker) -> ModelSchedulers:
        return ModelSchedulers(model, ranker, self._config.max_batch_tokens, self._observers)

    @property
    def problems(self) -> Mapping[str, str]:
        """Model → why it does not rank at the moment, if it hangs."""
        return {name: model.problem for name, model in self._models.items() if model.problem}

    @property
    def waiting_windows(self) -> int:
        """The number of windows in the queue, without those that are running."""
        return sum(model.waiting_windows for model in self._models.values())

    @property
    def queued_requests(self) -> int:
        """The number of requests in the queue, including those that are running."""
        return len(self._requests)

    @property
    def queued_tokens(self) -> float:
        """The tokens that remain of the requests in the queue, including those that are running."""
        return _tokens_to_rank(self._requests)

    def observe_batches(self, observer: BatchObserver) -> None:
        """Calls a function after each batch, on the event loop."""
        self._observers.on_batch.append(observer)

    def observe_results(self, observer: ResultsObserver) -> None:
        """Calls a function after each part of a request's work, on the event loop and in the request's context."""
        self._observers.on_results.append(observer)

    async def run(self, request: Request) -> Ranking:
        """Ranks; returns the best order so far if the deadline comes first, or it fails, and the request allows that.

        Raises: InvalidRequest for a query that the ranker cannot read or too many windows; ShuttingDown; FAILURES.
        """
        request.begin(self._infos)
        clock = asyncio.get_running_loop().time  # which deadlines refer to
        start_s, timeout = clock(), timeout_at(request.deadline_s - request.options.answer_margin_s)
        with request.share.queueing(sum(request.remaining.values())):
            try:
                async with timeout:
                    await asyncio.sleep(0)  # a deadline in the past ends the request before anything is prepared
                    with self._in_queue(request):
                        for stage in request.stages:
                            await self._run_stage(request, stage)
            except Exception as error:
                return answer_after_failure(request, error, timeout.expired(), 1000 * (clock() - start_s))
            return ranking_of(request, 1000 * (clock() - start_s))

    async def _run_stage(self, request: Request, stage: RankStage) -> None:
        """Lets a model order the candidates, round by round."""
        needed = request.window_bounds.min_windows
        model = self._models[stage.model]
        request.begin_stage(stage, self._infos[stage.model])
        round_ = request.next_round()
        while round_ is not None:
            needed = max(needed, len(request.windows) + len(round_.windows))
            if needed > MAX_WINDOWS:
                raise _too_many_windows(request, needed)
            ranked = await model.run_round(request, round_)
            round_ = request.next_round(request.add_round(round_, ranked))

    @contextmanager
    def _in_queue(self, request: Request) -> Iterator[None]:
        """Counts a request in the block. Raises: Overloaded, the queue is too full for it; an empty one takes any."""
        queued, tokens = _tokens_to_rank(self._requests), _tokens_to_rank([request])
        limit = self._config.max_queue_tokens
        if queued and queued + tokens > limit:
            raise Overloaded(
                f"{queued:.0f} tokens are queued; {tokens:.0f} more exceed the limit of {limit}; try again later",
                retry_after_s=self.remaining_s or _RETRY_S,
                metadata={"exceeded": "max_queue_tokens", "queued_tokens": f"{queued:.0f}", "limit": str(limit)},
            )
        self._requests[request] = None
        try:
            yield
        finally:
            del self._requests[request]

    @property
    def remaining_s(self) -> float:
        """Estimates the seconds until all queued work is done. The phases run concurrently, so the slowest decides."""
        tokens: Counter[ModelPhase] = Counter()
        for request in self._requests:
            tokens.update(request.remaining)
        rates = {phase: self._models[phase.model].rate(phase.phase).tokens_per_s for phase in tokens}
        return max((tokens[phase] / rate for phase, rate in rates.items() if rate), default=0.0)


def _too_many_windows(request: Request, windows: int) -> InvalidRequest:
    return InvalidRequest(
        "strategy.window_size",
        f"{request.strategy} needs {windows} windows for {len(request.candidates)} candidates, more than the limit of "
        f"{MAX_WINDOWS}; use a larger window_size or stride, or send fewer candidates",
        {"windows": str(windows), "limit": str(MAX_WINDOWS)},
    )


def _tokens_to_rank(requests: Iterable[Request]) -> float:
    """Sums the tokens of requests that remain to be ranked, of all models."""
    total = 0.0
    for request in requests:
        for (phase, _), tokens in request.remaining.items():
            total += tokens if phase is Phase.RANK else 0.0
    return total
