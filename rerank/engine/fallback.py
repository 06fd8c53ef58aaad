"""Answers in the place of failures: the best order so far, or that of the first stage, for requests that ask for it."""

from __future__ import annotations

from dataclasses import replace

from rerank.engine.request import Progress
from rerank.errors import FAILURES, DeadlineExceeded, told
from rerank.types import OnFailure, Ranking


def answer_instead(error: Exception, is_late: bool, progress: Progress, total_ms: float) -> Ranking:
    """The best order so far of a request, with the failure that ended its ranking.

    Args:
        error: what ended the ranking.
        is_late: whether the deadline has come, at which a TimeoutError ends it.

    Raises:
        DeadlineExceeded, Exception: the request asks for no answer in the place of the error.
    """
    options, is_deadline = progress.request.options, is_late and isinstance(error, TimeoutError)
    failure = _deadline_reached(progress, total_ms) if is_deadline else error
    answers = options.on_failure == OnFailure.FIRST_STAGE and type(failure) in FAILURES
    if not answers and not (options.allow_partial and is_deadline):
        raise failure
    ranking = progress.ranking(total_ms, stopped=FAILURES[type(failure)])
    reason = ranking.trace.reason if is_deadline else f"{ranking.trace.reason}: {told(failure)}"
    return replace(ranking, trace=replace(ranking.trace, failure=type(failure), reason=reason))


def _deadline_reached(progress: Progress, ms: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"deadline reached after {ms:.0f} ms with {len(progress.windows)} windows of {progress.request.strategy} done; "
        "allow more time, ask for fewer candidates, or allow a partial answer",
        {"windows_done": str(len(progress.windows))},
    )
