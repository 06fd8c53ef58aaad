"""Progress of a request: what was done for it so far, which becomes its ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rerank.engine.job import Completed, RankJob
from rerank.engine.model_threads import RankedWindow
from rerank.engine.scores import (
    candidate_scores,
    kendall_tau,
    reciprocal_ranks,
    strictly_decreasing,
    warning_of_scores,
    with_first_stage,
)
from rerank.engine.strategies import Positions, Round, Step, describe, has_stride
from rerank.errors import FAILURES, DeadlineExceeded, RankerFailure, message_for_caller
from rerank.rankers.base import RankerInfo
from rerank.types import (
    Completeness,
    FirstStageWeight,
    OnFailure,
    Prepared,
    RankedCandidate,
    Ranking,
    ScoreKind,
    Trace,
    Window,
    WindowRanking,
    WindowTrace,
)


@dataclass
class Progress:
    """The work done for a request so far: its windows and their cost. `ranking` turns them into the answer.

    Attributes:
        info: the ranker of the request's own model.
        order: the positions that are ranked, in the best order so far.
        blank: those of the passages without a text, which no model reads and which stand last.
        read: positions of the passages that were read by a model that reads passages.
        unanswered: number of windows that kept their order, because the model did not end its thinking.
        last: the ranking of the latest window, with what the first stage counts.
        first_stage_weight: the weight of the first stage in the first window.
        last_weight: the weight of the first stage, or of the preranker, in the latest window.
    """

    job: RankJob
    info: RankerInfo
    order: Sequence[int]
    blank: Sequence[int] = ()
    prepare_ms: float = 0.0
    queue_ms: float = 0.0
    model_ms: float = 0.0
    decode_ms: float = 0.0
    rounds: int = 0
    repairs: int = 0
    truncated_doc_ids: set[str] = field(default_factory=set)
    query_truncated: bool = False
    windows: list[WindowTrace] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    unanswered: int = 0
    last: WindowRanking | None = None
    first_stage_weight: float = 0.0
    last_weight: float = 0.0

    def window(
        self, prepared: Prepared, step: Step, round_: Round, positions: Positions, weight: FirstStageWeight
    ) -> Window:
        """Makes a window of a round.

        Args:
            weight: of the scores before the step.
        """
        job = self.job
        passages = tuple(prepared.passages[position] for position in positions)
        top_n = round_.top_n(positions, job.options.top_n) if step is job.steps[-1] else 0
        scores = tuple(self._scores_before(positions)) if weight else ()
        return Window(prepared.query, passages, top_n, scores, weight)

    def add_prepared(self, done: Completed[Prepared]) -> None:
        """Adds the times and the truncated texts of a slice that was prepared."""
        self.queue_ms += done.queue_ms
        self.prepare_ms += done.batch_ms
        self.truncated_doc_ids.update(done.result.truncated_doc_ids)
        self.query_truncated |= done.result.query.is_truncated

    def add_round(
        self, step: Step, round_: Round, ranked: Sequence[RankedWindow], info: RankerInfo
    ) -> list[WindowRanking]:
        """Adds a round of the ranker `info`, and returns its rankings, with what the first stage counts in them.

        The windows waited and ran concurrently, so the round took as long as the slowest of them.
        """
        rankings = [done.result for _, done in ranked]
        if not info.adds_first_stage:
            rankings = [with_first_stage(done.result, window) for window, done in ranked]
        self.last_weight = rankings[-1].first_stage_weight
        if self.last is None:
            self.first_stage_weight = self.last_weight
        _, slowest = max(ranked, key=lambda of_window: of_window[1].queue_ms + of_window[1].batch_ms)
        self.queue_ms += slowest.queue_ms
        self.model_ms += slowest.batch_ms
        self.decode_ms += slowest.result.decoded.ms
        for positions, ranking, (window, done) in zip(round_.windows, rankings, ranked, strict=True):
            decoded = done.result.decoded
            tokens = window.tokens_with(decoded)
            read = (positions, ranking.permutation, tokens, done.result.scores, info.score_kind)
            times = (done.queue_ms, done.batch_ms, decoded.tokens)
            trace = WindowTrace(*read, self.rounds, step.model, window.truncated, *times, done.result.cosines)
            self.windows.append(trace)
            self.repairs += ranking.repairs
            self.unanswered += ranking.is_unanswered
            self.read.update(positions if info.reads_passages and not ranking.is_unanswered else ())
        self.rounds += 1
        self.last = rankings[-1]
        return rankings

    def _scores_before(self, positions: Positions) -> Sequence[float]:
        """Returns the scores of the first stage or the preranker before a step.

        A preranker counts by reciprocal ranks if its last window did not hold all these passages.
        """
        if self.last is None:
            return candidate_scores([self.job.candidates[position] for position in positions])
        if set(positions) <= set(self.windows[-1].positions):
            score_of = dict(zip(self.windows[-1].positions, self.last.scores, strict=True))
            return [score_of[position] for position in positions]
        return reciprocal_ranks(len(positions))

    def ranking(self, total_ms: float, stopped: str = "") -> Ranking:
        """Makes the answer: the first `top_n` of the order. `stopped` names what ended the ranking early."""
        candidates, order = self.job.candidates, [*self.order, *self.blank]
        if sorted(order) != list(range(len(candidates))):
            raise RankerFailure(f"{self.job.strategy} lost or repeated candidates: {order}; this is a bug")
        score_kind, scores = self._scores()
        keep = self.job.options.top_n or len(order)
        ranked = tuple(
            RankedCandidate(candidates[position], position, score)
            for position, score in zip(order[:keep], scores[:keep], strict=True)
        )
        completeness, reason = self._partial_completeness(stopped) if stopped else self._completeness()
        return Ranking(ranked, score_kind, self._trace(total_ms, completeness, reason))

    def answer_instead(self, error: Exception, is_late: bool, total_ms: float) -> Ranking:
        """Answers with the best order so far, and the failure that ended the ranking.

        Args:
            error: what ended the ranking.
            is_late: whether the deadline has come, at which a TimeoutError ends it.

        Raises:
            DeadlineExceeded, Exception: the request asks for an error instead of such an answer.
        """
        options, is_deadline = self.job.options, is_late and isinstance(error, TimeoutError)
        failure = self._deadline_passed(total_ms) if is_deadline else error
        answers = options.on_failure == OnFailure.FIRST_STAGE and type(failure) in FAILURES
        if not answers and not (options.allow_partial and is_deadline):
            raise failure
        ranking = self.ranking(total_ms, stopped=FAILURES[type(failure)])
        reason = ranking.trace.reason if is_deadline else f"{ranking.trace.reason}: {message_for_caller(failure)}"
        return replace(ranking, trace=replace(ranking.trace, failure=type(failure), reason=reason))

    def _deadline_passed(self, ms: float) -> DeadlineExceeded:
        done = len(self.windows)
        windows = f"{done} windows of {self.job.strategy} were ranked"
        ranked = f"when {windows}" if done else "before any window was ranked"
        ways_out = "allow more time, ask for fewer candidates, or allow a partial answer"
        problem = f"the deadline passed after {ms:.0f} ms, {ranked}; {ways_out}"
        return DeadlineExceeded(problem, {"windows_done": str(done)})

    def _scores(self) -> tuple[ScoreKind, list[float]]:
        """Returns the scores of one window that held all candidates; otherwise ranks, as windows are not comparable.

        Scores of a model that reads each passage alone stand if its last window held all passages of the answer.
        """
        n, kind = len(self.order), self.info.score_kind
        keep = self.job.options.top_n or n + len(self.blank)
        answer = self.order[:keep]
        read = [(window.model, len(window.positions)) for window in self.windows]
        is_scored = read == [(self.job.steps[-1].model, n)] or (kind.is_pointwise and self._last_window_scored(answer))
        if self.last is None or kind is ScoreKind.RANK or not is_scored:
            n += len(self.blank)
            return ScoreKind.RANK, [float(n - rank) for rank in range(n)]
        score_of = dict(zip(self.windows[-1].positions, self.last.scores, strict=True))
        kind = ScoreKind.WINDOW_SCORE if self.last_weight else kind
        scores = [score_of[position] for position in answer]
        return kind, strictly_decreasing(scores + scores[-1:] * min(len(self.blank), keep - len(answer)))

    def _last_window_scored(self, answer: Sequence[int]) -> bool:
        """Returns True if the last window of the request's own model held the whole answer, without a first stage."""
        last = self.windows[-1] if self.windows and not self.last_weight else None
        return last is not None and last.model == self.job.steps[-1].model and {*answer} <= {*last.positions}

    def _trace(self, total_ms: float, completeness: Completeness, reason: str) -> Trace:
        job = self.job
        doc_ids = [passage.doc_id for passage in job.candidates]
        cut = {doc_ids[window.positions[place]] for window in self.windows for place in window.truncated}
        cut |= self.truncated_doc_ids
        return Trace(
            model=job.steps[-1].model,
            strategy=describe(tuple(step.as_run(len(self.order)) for step in job.steps)),
            windows=tuple(self.windows),
            rounds=self.rounds,
            repairs=self.repairs,
            queue_ms=self.queue_ms,
            prepare_ms=self.prepare_ms,
            model_ms=self.model_ms,
            decode_ms=self.decode_ms,
            truncated_doc_ids=tuple(doc_id for doc_id in dict.fromkeys(doc_ids) if doc_id in cut),
            query_truncated=job.query.is_truncated or self.query_truncated,
            query_vector=self.last.query_vector if self.last else None,
            completeness=completeness,
            reason=reason,
            total_ms=total_ms,
            first_stage_weight=self.first_stage_weight,
            kendall_tau=kendall_tau([*self.order, *self.blank]) if job.options.ordered else None,
            model_warning=self._warnings(),
        )

    def _warnings(self) -> str:
        of_steps = (step.warning(len(self.order)) for step in self.job.steps)
        of_scores = warning_of_scores(self.job.candidates) if self.first_stage_weight else ""
        stride, strategy = self.job.options.stride, self.job.steps[-1].strategy
        of_stride = f"stride {stride} is left out: {strategy} has none" if stride and not has_stride(strategy) else ""
        return "; ".join(filter(None, [self.info.warning, of_stride, of_scores, *of_steps]))

    def _completeness(self) -> tuple[Completeness, str]:
        n = len(self.order)
        if n and not self.read and not self.info.reads_passages:
            return Completeness.NONE, f"model {self.job.steps[-1].model} keeps the first-stage order"
        if self.unanswered:
            windows = f"{self.unanswered} of {len(self.windows)} windows kept their order"
            reason = f"{windows}, because the model had not ended its thinking after its tokens for it"
            return (Completeness.PARTIAL if self.read else Completeness.NONE), reason
        if len(self.read) < n:
            return Completeness.PARTIAL, f"{self.job.strategy} read {len(self.read)} of {n} candidates"
        return Completeness.FULL, ""

    def _partial_completeness(self, stopped: str) -> tuple[Completeness, str]:
        done = len(self.windows)
        fewest, most = self.job.window_bounds()
        bounds = f"{most}" if max(fewest, done) == most else f"{max(fewest, done)} to {most}"
        reason = f"{stopped} after {done} of {bounds} windows of {self.job.strategy}"
        return (Completeness.PARTIAL if self.read else Completeness.NONE), reason
