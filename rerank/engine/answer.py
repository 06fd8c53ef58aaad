"""The answer to a request: its ranking, or the best order so far if something ended it early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rerank.engine.request import Request
from rerank.engine.scores import kendall_tau, strictly_decreasing, warning_of_scores
from rerank.engine.strategies import has_stride
from rerank.errors import FAILURES, DeadlineExceeded, RankerFailure, message_for_caller
from rerank.types import Completeness, OnFailure, RankedCandidate, Ranking, ScoreKind, Trace


def ranking_of(request: Request, total_ms: float, stopped: str = "") -> Ranking:
    """Makes the answer: the first `top_n` of the order. `stopped` names what ended the ranking early."""
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
    """Answers with the best order so far, and the failure that ended the ranking.

    Args:
        error: what ended the ranking.
        is_late: whether the deadline has come, which raises a TimeoutError.

    Raises:
        DeadlineExceeded, Exception: the request asks for an error instead of such an answer.
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
    """Returns the scores of one window that held all candidates; otherwise ranks, as windows are not comparable.

    Scores of a model that reads each passage alone are kept if its last window held all passages of the answer.
    """
    n, kind = len(request.order), request.info.score_kind
    keep = request.options.top_n or n + len(request.blank)
    answer = request.order[:keep]
    read = [(window.model, len(window.positions)) for window in request.windows]
    is_scored = read == [(request.stages[-1].model, n)] or (_last_window_scored(request, answer) and kind.is_pointwise)
    if request.last is None or kind is ScoreKind.RANK or not is_scored:
        n += len(request.blank)
        return ScoreKind.RANK, [float(n - rank) for rank in range(n)]
    score_of = dict(zip(request.windows[-1].positions, request.last.scores, strict=True))
    kind = ScoreKind.WINDOW_SCORE if request.last_weight else kind
    scores = [score_of[position] for position in answer]
    return kind, strictly_decreasing(scores + scores[-1:] * min(len(request.blank), keep - len(answer)))


def _last_window_scored(request: Request, answer: Sequence[int]) -> bool:
    """Returns True if the last window of the request's own model held the whole answer, without a first stage."""
    last = request.windows[-1] if request.windows and not request.last_weight else None
    return last is not None and last.model == request.stages[-1].model and {*answer} <= {*last.positions}


def _trace(request: Request, total_ms: float, completeness: Completeness, reason: str) -> Trace:
    cut = request.truncated_doc_ids
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
        truncated_doc_ids=tuple(dict.fromkeys(one.doc_id for one in request.candidates if one.doc_id in cut)),
        query_truncated=request.query.is_truncated or request.query_truncated,
        query_vector=request.last.query_vector if request.last else None,
        completeness=completeness,
        reason=reason,
        total_ms=total_ms,
        first_stage_weight=request.weight,
        kendall_tau=kendall_tau([*request.order, *request.blank]) if request.options.ordered else None,
        model_warning=_warnings(request),
    )


def _warnings(request: Request) -> str:
    of_scores = warning_of_scores(request.candidates) if request.weight else ""
    stride, strategy = request.options.stride, request.stages[-1].strategy
    of_stride = f"stride {stride} is left out: {strategy} has none" if stride and not has_stride(strategy) else ""
    of_ranking = request.last.warning if request.last else ""
    return "; ".join(filter(None, [request.info.warning, of_ranking, of_stride, of_scores, *request.warnings]))


def _completeness(request: Request) -> tuple[Completeness, str]:
    n = len(request.order)
    if n and not request.read and not request.info.reads_passages:
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
