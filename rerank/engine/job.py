"""Job: a rerank request as the engine runs it, the progress of its windows, and the ranking they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from rerank.engine.interpolation import candidate_scores, interpolate, reciprocal_ranks
from rerank.engine.strategies import Interpolated, Positions, Round, Strategy
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
    ScoreKind,
    StrategyKind,
    Trace,
    Window,
    WindowRanking,
    WindowTrace,
)


@dataclass(frozen=True)
class Job:
    """A validated request with its strategy. `deadline` is in seconds on the event loop's clock.

    With `allow_partial`, the answer at the deadline is the best order so far. `is_ordered`: whether the order of the
    candidates carries meaning.
    """

    model: str
    query: Query
    candidates: tuple[Candidate, ...]
    strategy: Strategy
    top_n: int
    deadline: float | None = None
    allow_partial: bool = False
    is_ordered: bool = True

    def window(self, prepared: Prepared, positions: Positions, round_: Round) -> Window:
        """A window of a round. Its order has a meaning if it is that of an ordered list, or that of a preranker."""
        passages = tuple(prepared.passages[position] for position in positions)
        is_ordered = self.is_ordered or (self.strategy.kind is StrategyKind.CASCADE and not round_.model)
        return Window(prepared.query, passages, round_.top_n(positions, self.top_n), is_ordered)


@dataclass(frozen=True)
class WindowResult:
    """A window that was ranked, with its time in the queue and the duration of its batch."""

    encoded: EncodedWindow
    ranking: WindowRanking
    queue_ms: float
    model_ms: float


@dataclass
class Progress:
    """The windows of a job that were ranked so far, with their cost; `ranking()` turns them into the answer."""

    job: Job
    info: RankerInfo
    prepare_ms: float = 0.0
    queue_ms: float = 0.0
    model_ms: float = 0.0
    rounds: int = 0
    truncated_doc_ids: set[str] = field(default_factory=set)
    repairs: int = 0
    windows: list[WindowTrace] = field(default_factory=list)
    last: WindowResult | None = None
    #: Positions of the passages that were read by a model that reads passages.
    read: set[int] = field(default_factory=set)
    #: Positions of the passages that a model gave no score in some window.
    unscored: set[int] = field(default_factory=set)
    #: All positions in the best order so far; empty: in first-stage order.
    order: Sequence[int] = ()
    #: The scores with which the order was interpolated; None: it was not.
    interpolated: InterpolatedScores | None = None

    def add_prepared(self, prepared: Prepared, queue_ms: float, prepare_ms: float) -> None:
        self.queue_ms += queue_ms
        self.prepare_ms += prepare_ms
        self.truncated_doc_ids.update(prepared.truncated_doc_ids)

    def add_round(self, round_: Round, results: Sequence[WindowResult], info: RankerInfo) -> list[WindowRanking]:
        """Adds a round of the ranker `info`. Returns its rankings, which are interpolated if the round asks for it.

        Its windows waited and ran concurrently, so it took as long as the slowest of them.
        """
        scores = [result.ranking.scores for result in results]
        if round_.interpolation:
            results = [self._interpolate(round_, result) for result in results]
        slowest = max(results, key=lambda result: result.queue_ms + result.model_ms)
        self.queue_ms += slowest.queue_ms
        self.model_ms += slowest.model_ms
        self.repairs += sum(result.ranking.repairs for result in results)
        self.last = results[-1]
        for positions, own_scores, result in zip(round_.windows, scores, results, strict=True):
            order, encoded, model = result.ranking.permutation, result.encoded, round_.model or self.job.model
            ranked = (positions, order, encoded.tokens, own_scores, info.score_kind, self.rounds, model)
            self.windows.append(WindowTrace(*ranked, encoded.truncated, result.queue_ms, result.model_ms))
            self.read.update(positions if info.reads_passages else ())
            self.unscored.update(positions[place] for place in result.ranking.unscored)
            truncated = (positions[place] for place in encoded.truncated)
            self.truncated_doc_ids.update(self.job.candidates[position].passage.doc_id for position in truncated)
        self.rounds += 1
        return [result.ranking for result in results]

    def _interpolate(self, round_: Round, result: WindowResult) -> WindowResult:
        """The result of a round's one window, interpolated with its first stage: a preranker, or else the retriever.

        A preranker whose last window did not hold all these passages counts by its order, as reciprocal ranks.
        """
        (positions,) = round_.windows
        if self.last is None:
            scores, source = candidate_scores([self.job.candidates[position] for position in positions])
        elif set(positions) <= set(self.windows[-1].positions):
            score_of = dict(zip(self.windows[-1].positions, self.last.ranking.scores, strict=True))
            scores, source = [score_of[position] for position in positions], InterpolatedScores.PRERANKER
        else:
            scores, source = reciprocal_ranks(len(positions))
        self.interpolated = source if round_.is_final else None
        return replace(result, ranking=interpolate(result.ranking, scores, round_.interpolation))

    def ranking(self, order: Sequence[int], total_ms: float) -> Ranking:
        """The answer for the final `order` of positions, best first; its first `top_n`."""
        return self._ranking(order, total_ms, self._completeness())

    def partial_ranking(self, total_ms: float) -> Ranking:
        """The answer if the deadline came before the final order."""
        return self._ranking(self.order or range(len(self.job.candidates)), total_ms, self._partial_completeness())

    def _ranking(self, order: Sequence[int], total_ms: float, completeness: tuple[Completeness, str]) -> Ranking:
        candidates = self.job.candidates
        if sorted(order) != list(range(len(candidates))):
            raise RankerFailure(f"{self.job.strategy} lost or repeated candidates: {order}; this is a bug")
        score_kind, scores = self._scores(order)
        keep = self.job.top_n or len(order)
        ranked = tuple(
            RankedCandidate(candidates[position], position, score)
            for position, score in zip(order[:keep], scores[:keep], strict=True)
        )
        return Ranking(ranked, score_kind, self._trace(total_ms, *completeness))

    def _scores(self, order: Sequence[int]) -> tuple[ScoreKind, list[float]]:
        """The window's scores if one window held all candidates; otherwise ranks, as windows are not comparable."""
        one_window = len(self.windows) == 1 and len(self.windows[0].positions) == len(order)
        if not one_window or self.last is None or self.info.score_kind is ScoreKind.RANK:
            return ScoreKind.RANK, [float(len(order) - rank) for rank in range(len(order))]
        score_of = dict(zip(self.windows[0].positions, self.last.ranking.scores, strict=True))
        kind = ScoreKind.INTERPOLATED if self.interpolated else self.info.score_kind
        return kind, strictly_decreasing([score_of[position] for position in order])

    def _trace(self, total_ms: float, completeness: Completeness, reason: str) -> Trace:
        strategy = self.job.strategy
        doc_ids = dict.fromkeys(candidate.passage.doc_id for candidate in self.job.candidates)
        return Trace(
            model=self.job.model,
            ranker=self.info.kind,
            model_id=self.info.model_id,
            model_revision=self.info.model_revision,
            template_sha256=self.info.template_sha256,
            strategy=str(strategy),
            windows=tuple(self.windows),
            rounds=self.rounds,
            truncated_doc_ids=tuple(each for each in doc_ids if each in self.truncated_doc_ids),
            repairs=self.repairs,
            completeness=completeness,
            reason=reason,
            queue_ms=self.queue_ms,
            prepare_ms=self.prepare_ms,
            model_ms=self.model_ms,
            total_ms=total_ms,
            interpolation=self._interpolation(strategy) if isinstance(strategy, Interpolated) else None,
            model_warning=self.info.warning,
            unscored_doc_ids=tuple(self.job.candidates[each].passage.doc_id for each in sorted(self.unscored)),
            cached_vectors=sum(candidate.passage.vector_cached for candidate in self.job.candidates),
        )

    def _interpolation(self, strategy: Interpolated) -> InterpolationReport:
        reason = "" if self.interpolated else strategy.problem(len(self.job.candidates)) or "no window was ranked"
        return InterpolationReport(strategy.first_stage, self.interpolated, reason)

    def _completeness(self) -> tuple[Completeness, str]:
        n = len(self.job.candidates)
        if n and not self.read and not self.info.reads_passages:
            return Completeness.NONE, f"model {self.job.model} keeps the first-stage order"
        if len(self.read) < n:
            return Completeness.PARTIAL, f"{self.job.strategy} read {len(self.read)} of {n} candidates"
        return Completeness.FULL, ""

    def _partial_completeness(self) -> tuple[Completeness, str]:
        cost = self.job.strategy.cost(len(self.job.candidates))
        least, most = max(cost.min_windows, len(self.windows)), cost.max_windows
        bounds = f"{least}" if least == most else f"{least} to {most}"
        reason = f"the deadline came after {len(self.windows)} of {bounds} windows of {self.job.strategy}"
        return (Completeness.PARTIAL if self.read else Completeness.NONE), reason


def prepare_tokens(info: RankerInfo, query: Query, passages: Sequence[Passage]) -> int:
    """Estimated tokens of the query and the passages to prepare."""
    return 2 + len(query.text) // 4 + sum(passage_tokens(info, p) for p in passages)


def passage_tokens(info: RankerInfo, passage: Passage) -> int:
    """Estimated tokens of a passage to prepare: 2 and one per 4 characters up to the ranker's limit; 1 for a vector."""
    is_ready = info.reads_vectors and passage.vector is not None
    return 1 if is_ready else 2 + min(len(passage.text) // 4, info.max_passage_tokens)


def window_tokens(info: RankerInfo, passages: Sequence[Passage], n: int) -> float:
    """Estimated tokens of a window of n average passages, without the text around them; see TokenRatio."""
    each = 1 if info.reads_vectors else sum(passage_tokens(info, p) for p in passages) / max(1, len(passages))
    return min(n * each, info.max_window_tokens)


def slices(passages: Sequence[Passage], tokens: Callable[[Passage], int], max_tokens: float) -> list[list[int]]:
    """Positions of the passages in slices of at most so many tokens, or of one text; equal texts share a slice.

    They are in the order of their lengths, so that a batch of a slice needs little padding.
    """
    texts = [passage.text for passage in passages]
    by_length = sorted(range(len(texts)), key=lambda position: (len(texts[position]), texts[position]))
    parts, room = list[list[int]](), 0.0
    for _, same in groupby(by_length, key=texts.__getitem__):  # compares neighbours, which is faster than hashing all
        positions = list(same)
        needed = sum(tokens(passages[position]) for position in positions)
        if needed > room or not parts:
            parts.append([])
            room = max_tokens
        parts[-1] += positions
        room -= needed
    return parts


def too_many_windows(job: Job, windows: int, limit: int) -> InvalidRequest:
    """The error of a request whose schedule needs more windows than a request may have."""
    return InvalidRequest(
        "strategy.window_size",
        f"{job.strategy} needs {windows} windows for {len(job.candidates)} candidates, more than the limit of {limit}; "
        "use a larger window_size or stride, or send fewer candidates",
        {"windows": str(windows), "limit": str(limit)},
    )


def strictly_decreasing(scores: Sequence[float]) -> list[float]:
    """The scores, each lowered to the float32 below its predecessor if it is not smaller than that in float32.

    trec_eval reads scores as float32, sorts by them and ignores the rank column, so tied scores would lose the order.
    """
    result: list[float] = []
    for score in scores:
        if result and not np.float32(score) < np.float32(result[-1]):
            score = float(np.nextafter(np.float32(result[-1]), np.float32(-np.inf)))
        result.append(score)
    return result
