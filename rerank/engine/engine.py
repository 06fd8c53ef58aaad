"""Engine: runs many requests on a few models, on one event loop and two threads per model.

The answer to a request is its ranking, or the best order so far if a failure or the deadline ended it early.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rerank.config import EngineConfig
from rerank.engine.accounts import Accounts, Shared
from rerank.engine.model import ModelSchedulers
from rerank.engine.request import ModelPhase, Phase, Request
from rerank.engine.scheduler import BatchObserver, Observers, ResultsObserver
from rerank.engine.scores import kendall_tau, strictly_decreasing, warning_of_distances, warning_of_lost_scores
from rerank.engine.strategies import RankStage, has_stride
from rerank.errors import FAILURES, DeadlineExceeded, InvalidRequest, RankerFailure, message_for_caller
from rerank.rankers.base import Ranker, RankerInfo
from rerank.types import Completeness, OnFailure, RankedCandidate, Ranking, ScoreKind, Trace

#: Largest number of windows of a request.
MAX_WINDOWS = 2000
#: Time in seconds until a refused request may be sent again, while no rate is measured.
_RETRY_S = 1.0


class Engine:
    """Runs requests. Each model has a thread that prepares input and one that ranks; all else is on the event loop.

    Queued work of a request is dropped when the request is cancelled or its deadline passes. A batch, or a slice of
    passages, that runs already is not interrupted.

    Args:
        rankers: name → ranker of all models.
        config: settings of the queues.
        infos: name → description of all models; None for the descriptions of the rankers.
    """

    def __init__(
        self, rankers: Mapping[str, Ranker], config: EngineConfig, infos: Mapping[str, RankerInfo] | None = None
    ) -> None:
        self._infos = dict(infos or {model: ranker.info for model, ranker in rankers.items()})
        self._config = config
        #: The resources that each caller uses. The engine counts tokens, and the ports count calls and bytes.
        self.accounts = Accounts({Shared.TOKENS: config.max_queue_tokens})
        self._requests: dict[Request, None] = {}  # in progress, in the order of arrival
        self._observers = Observers()
        self._models = {model: self._schedulers_of(model, ranker) for model, ranker in rankers.items()}

    async def __aenter__(self) -> Engine:
        await asyncio.gather(*(model.open() for model in self._models.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Waits for the running batches; queued work fails with ShuttingDown."""
        for model in self._models.values():
            model.refuse_new_work()
        await asyncio.gather(*(model.close() for model in self._models.values()))

    async def replace_ranker(self, model: str, ranker: Ranker, info: RankerInfo) -> None:
        """Replaces the ranker of a model. Requests that the former ranker has not answered fail with ShuttingDown."""
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
        """Name of a model that hangs → why it does not rank at the moment."""
        return {name: model.problem for name, model in self._models.items() if model.problem}

    @property
    def waiting_windows(self) -> int:
        """Number of windows in the queues of all models, without the running ones."""
        return sum(model.waiting_windows for model in self._models.values())

    @property
    def queued_requests(self) -> int:
        """Number of requests that wait or run."""
        return len(self._requests)

    @property
    def queued_tokens(self) -> float:
        """Number of tokens that are still to be ranked for the requests that wait or run."""
        return _tokens_to_rank(self._requests)

    def observe_batches(self, observer: BatchObserver) -> None:
        """Calls a function after each batch, on the event loop."""
        self._observers.on_batch.append(observer)

    def observe_results(self, observer: ResultsObserver) -> None:
        """Calls a function with the results of each `Scheduler.run`, on the event loop and in the request's context."""
        self._observers.on_results.append(observer)

    async def run(self, request: Request) -> Ranking:
        """Ranks the candidates of a request.

        Returns the best order so far after a failure or at the deadline, if the request allows it.

        Raises:
            InvalidRequest: the ranker cannot read the query, or there would be too many windows.
            ShuttingDown: the engine, or the ranker of a model, is being closed.
            FAILURES: the request could not be ranked, and allows no other answer.
        """
        request.begin(self._infos)
        start_s = time.perf_counter()  # the event loop's clock has a resolution of milliseconds in uvloop
        timeout = timeout_at(request.deadline_s - request.options.answer_margin_s)
        tokens = math.ceil(sum(request.remaining.values()))
        self.accounts.check_quota(request.usage, Shared.TOKENS, tokens)
        try:
            async with timeout:
                await asyncio.sleep(0)  # a deadline in the past ends the request before anything is prepared
                with self._in_queue(request, tokens):
                    for stage in request.stages:
                        await self._run_stage(request, stage)
        except Exception as error:
            return answer_after_failure(request, error, timeout.expired(), _ms_since(start_s))
        return ranking_of(request, _ms_since(start_s))

    async def _run_stage(self, request: Request, stage: RankStage) -> None:
        """Runs a stage of a request: its model orders the candidates, round by round."""
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
    def _in_queue(self, request: Request, tokens: int) -> Iterator[None]:
        """Counts a request and its tokens during the block. Raises: Overloaded, see `Accounts.acquire`."""
        with self.accounts.acquired(request.usage, Shared.TOKENS, tokens, lambda: self.remaining_s or _RETRY_S):
            self._requests[request] = None
            try:
                yield
            finally:
                del self._requests[request]

    @property
    def remaining_s(self) -> float:
        """Estimated time in seconds until all queued work is done: the time of the slowest phase, as phases overlap."""
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


def _ms_since(start_s: float) -> float:
    return 1000 * (time.perf_counter() - start_s)


def timeout_at(deadline_s: float) -> asyncio.Timeout:
    """Ends a block with TimeoutError at a time of the event loop's clock in seconds; never at infinity."""
    return asyncio.timeout_at(deadline_s if deadline_s < math.inf else None)


def _tokens_to_rank(requests: Iterable[Request]) -> float:
    """The tokens of requests that are still to be ranked, summed over all models."""
    total = 0.0
    for request in requests:
        for (phase, _), tokens in request.remaining.items():
            total += tokens if phase is Phase.RANK else 0.0
    return total


def ranking_of(request: Request, total_ms: float, stopped: str = "") -> Ranking:
    """The ranking of a request: the first `top_n` candidates of its order so far.

    Args:
        total_ms: time since the request was accepted.
        stopped: the reason why the ranking ended early; empty if it is complete.
    """
    candidates, order = request.candidates, [*request.order, *request.blank]
    if sorted(order) != list(range(len(candidates))):
        raise RankerFailure(f"{request.strategy} lost or repeated candidates: {order}; this is a bug")
    score_kind, scores = _scores(request)
    keep = request.options.top_n or len(order)
    ranked = tuple(
        RankedCandidate(candidates[position], position, score)
        for position, score in zip(order[:keep], scores[:keep], strict=True)
    )
    completeness, reason = _partial_completeness(request, stopped) if stopped else _completeness(request)
    return Ranking(ranked, score_kind, _trace(request, total_ms, completeness, reason))


def answer_after_failure(request: Request, error: Exception, is_late: bool, total_ms: float) -> Ranking:
    """The best order so far, with the failure that ended the ranking.

    Args:
        error: the exception that ended the ranking; a TimeoutError at the deadline.
        is_late: whether the deadline has passed.
        total_ms: time since the request was accepted.

    Raises:
        DeadlineExceeded, Exception: the failure, if the request allows no answer after it.
    """
    options, is_deadline = request.options, is_late and isinstance(error, TimeoutError)
    failure = _deadline_passed(request, total_ms) if is_deadline else error
    answers = options.on_failure == OnFailure.FIRST_STAGE and type(failure) in FAILURES
    if not answers and not (options.allow_partial and is_deadline):
        raise failure
    ranking = ranking_of(request, total_ms, stopped=FAILURES[type(failure)])
    reason = ranking.trace.reason if is_deadline else f"{ranking.trace.reason}: {message_for_caller(failure)}"
    return replace(ranking, trace=replace(ranking.trace, failure=type(failure), reason=reason))


def _deadline_passed(request: Request, ms: float) -> DeadlineExceeded:
    done = len(request.windows)
    windows = f"{done} windows of {request.strategy} were ranked"
    ranked = f"when {windows}" if done else "before any window was ranked"
    ways_out = "allow more time, ask for fewer candidates, or allow a partial answer"
    problem = f"the deadline passed after {ms:.0f} ms, {ranked}; {ways_out}"
    return DeadlineExceeded(problem, {"windows_done": str(done)})


def _scores(request: Request) -> tuple[ScoreKind, list[float]]:
    """Kind and values of the scores: the scores of the window that held all candidates, otherwise ranks.

    Scores of different windows cannot be compared. Those of a model that reads each passage alone can be, and are
    returned if its last window held all passages of the answer.
    """
    n, kind = len(request.order), request.info.score_kind
    keep = request.options.top_n or n + len(request.blank)
    answer = request.order[:keep]
    is_whole = len(request.windows) == 1 and len(request.windows[0].positions) == n and len(request.stages) == 1
    is_scored = is_whole or (_last_window_scored(request, answer) and kind.is_pointwise)
    if request.last is None or kind is ScoreKind.RANK or not is_scored:
        return ScoreKind.RANK, list(map(float, range(n + len(request.blank), 0, -1)))
    score_of = dict(zip(request.windows[-1].positions, request.last.scores, strict=True))
    kind = ScoreKind.WINDOW_SCORE if request.last_weight or request.last.lexical else kind
    scores = [score_of[position] for position in answer]
    return kind, strictly_decreasing(scores + scores[-1:] * min(len(request.blank), keep - len(answer)))


def _last_window_scored(request: Request, answer: Sequence[int]) -> bool:
    """True if the last window is of the request's own model, held the whole answer and had no first-stage weight."""
    last = request.windows[-1] if request.windows and not request.last_weight else None
    return last is not None and last.model == request.stages[-1].model and {*answer} <= {*last.positions}


def _trace(request: Request, total_ms: float, completeness: Completeness, reason: str) -> Trace:
    cut = request.truncated_doc_ids
    truncated = tuple(dict.fromkeys(one.doc_id for one in request.candidates if one.doc_id in cut)) if cut else ()
    warning = _warnings(request)
    return Trace(
        model=request.stages[-1].model,
        strategy=request.strategy,
        windows=tuple(request.windows),
        rounds=request.rounds,
        repairs=request.repairs,
        queue_ms=request.queue_ms,
        prepare_ms=request.prepare_ms,
        model_ms=request.model_ms,
        decode_ms=request.decode_ms,
        truncated_doc_ids=truncated,
        query_truncated=request.query.is_truncated or request.query_truncated,
        query_vector=request.last.query_vector if request.last else None,
        completeness=completeness,
        reason=reason,
        total_ms=total_ms,
        first_stage_weight=request.weight,
        kendall_tau=kendall_tau([*request.order, *request.blank]) if request.options.ordered else None,
        model_warning=warning,
        prompt=request.info.prompt,
    )


def _warnings(request: Request) -> str:
    on_scores = ""
    if request.weight:
        blank = {*request.blank}
        scored = [candidate for index, candidate in enumerate(request.candidates) if index not in blank]
        on_scores = warning_of_lost_scores(scored) or warning_of_distances(scored)
    stride, strategy = request.options.stride, request.stages[-1].strategy
    on_stride = f"stride {stride} is left out: {strategy} has none" if stride and not has_stride(strategy) else ""
    on_ranking = request.last.warning if request.last else ""
    return "; ".join(filter(None, [request.info.warning, on_ranking, on_stride, on_scores, *request.warnings]))


def _completeness(request: Request) -> tuple[Completeness, str]:
    n = len(request.order)
    if n and not request.read and not request.info.reorders:
        return Completeness.NONE, f"model {request.stages[-1].model} keeps the first-stage order"
    if request.unanswered:
        windows = f"{request.unanswered} of {len(request.windows)} windows kept their order"
        reason = f"{windows}, because the model had not ended its thinking after its tokens for it"
        return (Completeness.PARTIAL if request.read else Completeness.NONE), reason
    if len(request.read) < n:
        return Completeness.PARTIAL, f"{request.strategy} read {len(request.read)} of {n} candidates"
    return Completeness.FULL, ""


def _partial_completeness(request: Request, stopped: str) -> tuple[Completeness, str]:
    done = len(request.windows)
    fewest, most = request.window_bounds
    bounds = f"{most}" if max(fewest, done) == most else f"{max(fewest, done)} to {most}"
    reason = f"{stopped} after {done} of {bounds} windows of {request.strategy}"
    return (Completeness.PARTIAL if request.read else Completeness.NONE), reason
