"""A request: what a caller asks for, the work that it needs, and what was done for it, which becomes its ranking."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from rerank.engine.language import language_warning
from rerank.engine.relevance import with_relevance
from rerank.engine.scores import candidate_scores, interpolate, reciprocal_ranks, strictly_decreasing
from rerank.engine.strategies import Cost, Positions, Round, Step, Steps, describe
from rerank.errors import InvalidRequest, RankerFailure
from rerank.rankers.base import RankerInfo
from rerank.types import (
    Candidate,
    Completeness,
    EncodedWindow,
    InterpolatedScores,
    InterpolationReport,
    Passage,
    Prepared,
    Query,
    RankedCandidate,
    Ranking,
    RankOptions,
    ScoreKind,
    Trace,
    Window,
    WindowRanking,
    WindowTrace,
)

T = TypeVar("T")
R = TypeVar("R")

#: The least that a window counts, as scheduling, encoding and reporting it take time.
MIN_WINDOW_TOKENS = 16


class Stage(Enum):
    """The two stages of a request that a model's queues hold, and the work on texts before them, see TextThreads."""

    PREPARE = "prepare"
    RANK = "rank"
    TEXT = "text"


class ModelStage(NamedTuple):
    """One stage of one model: the unit for which throughput is measured.

    Its work is counted in tokens: positions of the model's input for RANK; for PREPARE, an estimate from the length of
    the texts to embed.
    """

    stage: Stage
    model: str


class Completed(NamedTuple, Generic[R]):
    """A result of a stage, with its time in the queue and the duration of its batch."""

    result: R
    queue_ms: float
    batch_ms: float


#: A window as model input, and its ranking.
RankedWindow: TypeAlias = tuple[EncodedWindow, Completed[WindowRanking]]


@dataclass
class _Windows:
    """The windows that a request is expected to need of one model, and those encoded so far with their tokens."""

    expected: float
    encoded: float = 0.0
    tokens: int = 0


@dataclass(eq=False)
class RankRequest:
    """A validated request: what is asked for, and its place in the queues of the engine.

    Attributes:
        steps: one, or up to three of a cascade; the last one is that of the request's own model.
        options: of the answer; what they say about the model and its strategy is in `steps`.
        deadline_s: on the event loop's clock.
        caller: callers have equal shares of the engine: the name of an API key, or the address of a connection.
        arrived_s: on the same clock as the deadline; set by the engine, as everything below is.
        latest_end_s: the deadline; infinite without one, and where a partial answer is allowed.
        remaining: estimated tokens that remain, including those that are running.
        probes: the stages that this request probes: their rates count only if they were measured after its arrival.
        tags: in each stage where a part of it has run, the tag of its caller since then, see FairQueue.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    steps: Steps
    options: RankOptions = field(default_factory=RankOptions)
    deadline_s: float | None = None
    caller: str = ""
    arrived_s: float = 0.0
    latest_end_s: float = field(init=False)
    remaining: dict[ModelStage, float] = field(init=False, default_factory=dict)
    probes: frozenset[ModelStage] = field(init=False, default=frozenset())
    tags: dict[ModelStage, float] = field(init=False, default_factory=dict)
    _windows: dict[str, _Windows] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.latest_end_s = math.inf if self.deadline_s is None or self.options.allow_partial else self.deadline_s

    @property
    def strategy(self) -> str:
        """The steps in words."""
        return describe(self.steps)

    @property
    def passages(self) -> list[Passage]:
        return [candidate.passage for candidate in self.candidates]

    def window_bounds(self) -> Cost:
        """The least and the most windows of all steps."""
        costs = [step.strategy.cost(len(self.candidates)) for step in self.steps]
        return Cost(*map(sum, zip(*costs, strict=True)))

    def expect_work(self, infos: Mapping[str, RankerInfo], token_ratio: Callable[[str], float]) -> None:
        """Estimates what remains, from the texts and the bounds of the schedules; `token_ratio`: see Throughput."""
        passages, n = self.passages, len(self.candidates)
        for step in self.steps:
            info, cost = infos[step.model], step.strategy.cost(n)
            tokens_each = token_ratio(step.model) * window_tokens(info, passages, min(n, step.strategy.window_size))
            windows = (cost.min_windows + cost.max_windows) / 2
            self._windows[step.model] = _Windows(windows)
            self.remaining[ModelStage(Stage.RANK, step.model)] = windows * max(MIN_WINDOW_TOKENS, tokens_each)
            self.remaining[ModelStage(Stage.PREPARE, step.model)] = prepare_tokens(info, self.query, passages)

    def add_windows(self, model: str, tokens: Sequence[int], shares: Sequence[float] | None = None) -> None:
        """Counts windows that were encoded and are ranked next, or parts that are these shares of their windows.

        Those that follow are taken for like their average.
        """
        windows = self._windows[model]
        windows.encoded += len(tokens) if shares is None else sum(shares)
        windows.tokens += sum(tokens)
        further = max(0.0, windows.expected - windows.encoded) * (windows.tokens / windows.encoded)
        self.remaining[ModelStage(Stage.RANK, model)] = further + sum(tokens)

    def subtract(self, model_stage: ModelStage, tokens: float) -> None:
        """Subtracts work that is done."""
        self.remaining[model_stage] = max(0.0, self.remaining.get(model_stage, 0.0) - tokens)

    def remaining_tokens(self, stage: Stage) -> float:
        return sum(tokens for model_stage, tokens in self.remaining.items() if model_stage.stage is stage)


@dataclass(frozen=True, eq=False)
class Work(Generic[T, R]):
    """A piece of a request's work, such as one window, and the future of its result."""

    input: T
    request: RankRequest
    #: Its share of a batch's `max_batch_tokens`, 1 or more.
    tokens: int
    future: asyncio.Future[Completed[R]]
    submitted_s: float

    def fail(self, error: Exception) -> None:
        """Ends the work with an error, unless its request has ended."""
        if not self.future.done():
            self.future.set_exception(error)


def prepare_tokens(info: RankerInfo, query: Query, passages: Sequence[Passage]) -> int:
    """Estimated tokens of the query and the passages to prepare."""
    return 2 + len(query.text) // 4 + sum(passage_tokens(info, passage) for passage in passages)


def passage_tokens(info: RankerInfo, passage: Passage) -> int:
    """Estimated tokens of a passage to prepare: 2 and one per 4 characters up to the ranker's limit; 1 for a vector."""
    return 1 if info.is_ready(passage) else text_tokens(info, passage)


def text_tokens(info: RankerInfo, passage: Passage) -> int:
    """Estimated tokens of a passage's text, as far as the ranker reads it."""
    return 2 + min(len(passage.text) // 4, info.max_passage_tokens)


def window_tokens(info: RankerInfo, passages: Sequence[Passage], n: int) -> float:
    """Estimated tokens of a window of n average passages, without the text around them."""
    if not info.reads_vectors:
        each = sum(passage_tokens(info, passage) for passage in passages) / max(1, len(passages))
        return min(n * each, info.max_window_tokens)
    missing = [text_tokens(info, passage) for passage in passages if passage.vector is None]
    encoded = min(len(missing), info.max_encoded_passages) * sum(missing) / max(1, len(missing))
    return min(n + encoded, info.max_window_tokens)


#: What a trace takes from the model's info and from the progress, under the same names.
_OF_MODEL = ("model_id", "model_revision", "template_sha256", "precision")
_OF_WORK = ("rounds", "repairs", "queue_ms", "prepare_ms", "model_ms")


@dataclass
class Progress:
    """The work done for a request so far: its windows and their cost. `ranking` turns them into the answer.

    Attributes:
        info: the ranker of the request's own model.
        order: all positions in the best order so far.
        read: positions of the passages that were read by a model that reads passages.
        unscored: positions of the passages that a model gave no score in some window.
        unanswered: number of windows that kept their order, because the model did not end its thinking.
        last: the ranking of the latest window, interpolated if its step asks for it.
        interpolated: what stood for the first stage in the order of the last step; None: it was not interpolated.
        correlation: of the scores of the first stage with the signals of the last step's model; None if unknown.
    """

    request: RankRequest
    info: RankerInfo
    order: Sequence[int]
    prepare_ms: float = 0.0
    queue_ms: float = 0.0
    model_ms: float = 0.0
    rounds: int = 0
    repairs: int = 0
    truncated_doc_ids: set[str] = field(default_factory=set)
    windows: list[WindowTrace] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    unscored: set[int] = field(default_factory=set)
    unanswered: int = 0
    last: WindowRanking | None = None
    interpolated: InterpolatedScores | None = None
    correlation: float | None = None

    def window(self, prepared: Prepared, step: Step, round_: Round, positions: Positions, fuses: bool) -> Window:
        """A window of a round. Its order has a meaning if it is that of an ordered list, or that of a preranker.

        Args:
            fuses: the ranker fuses the scores of the first stage, or of the preranker, itself.
        """
        request = self.request
        passages = tuple(prepared.passages[position] for position in positions)
        top_n = round_.top_n(positions, request.options.top_n) if step is request.steps[-1] else 0
        window = Window(prepared.query, passages, top_n, request.options.ordered or step is not request.steps[0])
        if not fuses:
            return window
        scores = self._scores_before(step, positions)
        return replace(window, first_stage=tuple(scores), first_stage_weight=step.interpolation)

    def add_prepared(self, done: Completed[Prepared]) -> None:
        self.queue_ms += done.queue_ms
        self.prepare_ms += done.batch_ms
        self.truncated_doc_ids.update(done.result.truncated_doc_ids)

    def add_round(
        self, step: Step, round_: Round, ranked: Sequence[RankedWindow], info: RankerInfo, interpolates: bool = False
    ) -> list[WindowRanking]:
        """Adds a round of the ranker `info`. Returns its rankings, which are interpolated if the step is.

        Its windows waited and ran concurrently, so it took as long as the slowest of them.
        """
        rankings = [done.result for _, done in ranked]
        if self.interpolated in (InterpolatedScores.FIRST_STAGE, InterpolatedScores.BM25):
            self.correlation = rankings[-1].first_stage_correlation
        if interpolates:
            rankings = [self._interpolate(step, round_.windows[0], rankings[0])]
        _, slowest = max(ranked, key=lambda each: each[1].queue_ms + each[1].batch_ms)
        self.queue_ms += slowest.queue_ms
        self.model_ms += slowest.batch_ms
        for positions, ranking, (encoded, done) in zip(round_.windows, rankings, ranked, strict=True):
            read = (positions, ranking.permutation, encoded.tokens, done.result.scores, info.score_kind)
            times = (done.queue_ms, done.batch_ms)
            trace = WindowTrace(*read, self.rounds, step.model, encoded.truncated, *times, done.result.signals)
            self.windows.append(trace)
            self.repairs += ranking.repairs
            self.unanswered += ranking.is_unanswered
            self.read.update(positions if info.reads_passages and not ranking.is_unanswered else ())
            self.unscored.update(positions[place] for place in ranking.unscored)
        self.rounds += 1
        self.last = rankings[-1]
        return rankings

    def _interpolate(self, step: Step, positions: Positions, ranking: WindowRanking) -> WindowRanking:
        """The ranking of a step's one window, interpolated with the retriever or the preranker."""
        return interpolate(ranking, self._scores_before(step, positions), step.interpolation)

    def _scores_before(self, step: Step, positions: Positions) -> Sequence[float]:
        """The scores before a step: of the first stage, or of the preranker; records their source for the reply.

        A preranker whose last window did not hold all these passages counts by its order, as reciprocal ranks.
        """
        if self.last is None:
            scores, source = candidate_scores([self.request.candidates[position] for position in positions])
        elif set(positions) <= set(self.windows[-1].positions):
            score_of = dict(zip(self.windows[-1].positions, self.last.scores, strict=True))
            scores, source = [score_of[position] for position in positions], InterpolatedScores.PRERANKER
        else:
            scores, source = reciprocal_ranks(len(positions))
        self.interpolated = source if step is self.request.steps[-1] else None
        return scores

    def ranking(self, total_ms: float, stopped: str = "") -> Ranking:
        """The answer: the first `top_n` of the order. `stopped`: what came before the final order, in words."""
        candidates, order = self.request.candidates, self.order
        if sorted(order) != list(range(len(candidates))):
            raise RankerFailure(f"{self.request.strategy} lost or repeated candidates: {order}; this is a bug")
        score_kind, scores = self._scores()
        keep = self.request.options.top_n or len(order)
        ranked = tuple(
            RankedCandidate(candidates[position], position, score)
            for position, score in zip(order[:keep], scores[:keep], strict=True)
        )
        completeness, reason = self._partial_completeness(stopped) if stopped else self._completeness()
        answer = Ranking(ranked, score_kind, self._trace(total_ms, completeness, reason))
        return with_relevance(answer, self.info.relevance, self.request.passages, self.windows)

    def _scores(self) -> tuple[ScoreKind, list[float]]:
        """The window's scores if one window held all candidates; otherwise ranks, as windows are not comparable.

        Scores of a model that reads each passage alone stand if its last window held all passages of the answer.
        """
        n, kind = len(self.order), self.info.score_kind
        answer = self.order[: self.request.options.top_n or n]
        read = [(window.model, len(window.positions)) for window in self.windows]
        is_scored = read == [(self.request.steps[-1].model, n)] or (
            kind.is_pointwise and self._last_window_scored(answer)
        )
        if self.last is None or kind is ScoreKind.RANK or not is_scored:
            return ScoreKind.RANK, [float(n - rank) for rank in range(n)]
        score_of = dict(zip(self.windows[-1].positions, self.last.scores, strict=True))
        kind = ScoreKind.INTERPOLATED if self.interpolated else kind
        return kind, strictly_decreasing([score_of[position] for position in answer])

    def _last_window_scored(self, answer: Sequence[int]) -> bool:
        """True if the last window of the request's own model held the whole answer, and its scores stand alone."""
        last = self.windows[-1] if self.windows and not self.interpolated else None
        return last is not None and last.model == self.request.steps[-1].model and {*answer} <= {*last.positions}

    def _trace(self, total_ms: float, completeness: Completeness, reason: str) -> Trace:
        request, info = self.request, self.info
        doc_ids = [passage.doc_id for passage in request.passages]
        cut = {doc_ids[window.positions[place]] for window in self.windows for place in window.truncated}
        cut |= self.truncated_doc_ids
        return Trace(
            model=request.steps[-1].model,
            ranker=info.kind,
            **{name: getattr(info, name) for name in _OF_MODEL},
            **{name: getattr(self, name) for name in _OF_WORK},
            strategy=describe(request.steps),
            windows=tuple(self.windows),
            truncated_doc_ids=tuple(each for each in dict.fromkeys(doc_ids) if each in cut),
            completeness=completeness,
            reason=reason,
            total_ms=total_ms,
            interpolation=self._interpolation(request.steps[-1]) if request.steps[-1].interpolation else None,
            model_warning="; ".join(filter(None, [info.warning, self._language_warning()])),
            unscored_doc_ids=tuple(doc_ids[position] for position in sorted(self.unscored)),
            cached_vectors=sum(passage.vector_cached or passage.sparse_cached for passage in request.passages),
        )

    def _language_warning(self) -> str:
        texts = (candidate.passage.text for candidate in self.request.candidates)
        return language_warning(self.info.language, self.request.query.text, texts)

    def _interpolation(self, step: Step) -> InterpolationReport:
        reason = "" if self.interpolated else step.obstacle(len(self.order)) or "no window was ranked"
        return InterpolationReport(step.interpolation, self.interpolated, reason, self.correlation)

    def _completeness(self) -> tuple[Completeness, str]:
        n = len(self.order)
        if n and not self.read and not self.info.reads_passages:
            return Completeness.NONE, f"model {self.request.steps[-1].model} keeps the first-stage order"
        if self.unanswered:
            windows = f"{self.unanswered} of {len(self.windows)} windows kept their order"
            reason = f"{windows}, because the model had not ended its thinking after its tokens for it"
            return (Completeness.PARTIAL if self.read else Completeness.NONE), reason
        if len(self.read) < n:
            return Completeness.PARTIAL, f"{self.request.strategy} read {len(self.read)} of {n} candidates"
        return Completeness.FULL, ""

    def _partial_completeness(self, stopped: str) -> tuple[Completeness, str]:
        done = len(self.windows)
        fewest, most = self.request.window_bounds()
        bounds = f"{most}" if max(fewest, done) == most else f"{max(fewest, done)} to {most}"
        reason = f"{stopped} after {done} of {bounds} windows of {self.request.strategy}"
        return (Completeness.PARTIAL if self.read else Completeness.NONE), reason


def too_many_windows(request: RankRequest, windows: int, limit: int) -> InvalidRequest:
    """The error of a request that needs more windows than a request may have."""
    return InvalidRequest(
        "strategy.window_size",
        f"{request.strategy} needs {windows} windows for {len(request.candidates)} candidates, more than the limit of "
        f"{limit}; use a larger window_size or stride, or send fewer candidates",
        {"windows": str(windows), "limit": str(limit)},
    )
