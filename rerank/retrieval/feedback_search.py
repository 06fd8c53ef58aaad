"""Search with relevance feedback: rank, update the query vector towards that ranking, retrieve again, rank the union.

The union of both retrievals is ranked as one list: the candidates of the first retrieval in the order of the first
ranking, followed by the new passages. One ranking therefore gives the order, the scores and the trace of the reply, so
that they agree; the price is one more pass of the ranker. When the second retrieval finds nothing new, the first
ranking is the answer and the price is the second retrieval only.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from rerank.errors import FAILURES, DeadlineExceeded, Overloaded, message_for_caller
from rerank.retrieval.query_update import QueryUpdates, UpdateOutcome, teacher_of, update_queries
from rerank.types import FeedbackMethod, FeedbackSettings, OnFailure, Passage, Query, Ranking, RankOptions, ScoreKind

#: (candidates, options, deadline_s) → their ranking.
Rank: TypeAlias = Callable[[tuple[Passage, ...], RankOptions, float], Awaitable[Ranking]]
#: (query, deadline_s) → the query with its vector, and the candidates that the retriever finds for it.
Retrieve: TypeAlias = Callable[[Query, float], Awaitable[tuple[Query, tuple[Passage, ...]]]]
#: Computes the updates of the query on another thread.
OnThread: TypeAlias = Callable[[Callable[[], QueryUpdates]], Awaitable[QueryUpdates]]

_KL_NEEDS_SCORES = "the method kl reads scores, but the scores of this ranking are ranks only; use weighted-ranknet"


@dataclass(frozen=True, slots=True)
class FeedbackReport:
    """Result and time of relevance feedback for one search.

    Attributes:
        reason: why the answer is the first ranking: the query vector was not updated, or the second ranking failed;
            otherwise empty.
        cosine: between the updated and the original query vector; 1 when it was not updated.
        ms: milliseconds of the first ranking, the update and the second retrieval together.
    """

    reason: str
    cosine: float = 1.0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class FeedbackSearch:
    """One search with relevance feedback, from the first ranking on.

    Args:
        settings: how the query vector is updated.
        rank, retrieve: may raise FAILURES.
        on_thread: runs the update of the query.
    """

    settings: FeedbackSettings
    rank: Rank
    retrieve: Retrieve
    on_thread: OnThread

    async def run(
        self, query: Query, candidates: tuple[Passage, ...], options: RankOptions, deadline_s: float
    ) -> tuple[Ranking, FeedbackReport]:
        """The ranking of the union of both retrievals, whose positions count `candidates` first, then new passages.

        The first ranking is the answer when there is no time for the second, with `options.allow_partial`, and when
        the second fails, with `options.on_failure`.

        Args:
            query: with its vector.
            candidates: the result of the first retrieval, which may be empty.
            deadline_s: on the event loop's clock; infinite for none.

        Raises:
            DeadlineExceeded, Overloaded: without `options.allow_partial` and `options.on_failure`.
            FAILURES: any other of them, without `options.on_failure`.
        """
        method, start_s = self.settings.method, time.perf_counter()
        first = await self.rank(candidates, replace(options, top_n=0), deadline_s)
        shortened = replace(first, ranked=first.ranked[: options.top_n or None])
        if first.trace.failure:
            reason = f"the first ranking was not completed: {first.trace.reason}"
            return shortened, FeedbackReport(reason, ms=_ms_since(start_s))
        if method is FeedbackMethod.KL and first.score_kind is ScoreKind.RANK and first.ranked:
            return shortened, FeedbackReport(_KL_NEEDS_SCORES, ms=_ms_since(start_s))
        by_ranker = method is FeedbackMethod.E2RANK
        update = partial(update_query, query, first, self.settings)
        updates = by_model(query, first) if by_ranker else await self.on_thread(update)
        report = FeedbackReport(updates.outcomes[0].value, float(updates.cosines[0]), _ms_since(start_s))
        if report.reason:
            return shortened, report
        try:
            updated = replace(query, vector=updates.vectors[0].numpy())
            new = await self._find_new(updated, candidates, deadline_s - options.answer_margin_s)
            report = replace(report, ms=_ms_since(start_s))
            if not new:
                return shortened, report
            return await self._rank_union(first, new, options, deadline_s), report
        except tuple(FAILURES) as error:
            is_allowed = options.allow_partial and isinstance(error, DeadlineExceeded | Overloaded)
            if not is_allowed and options.on_failure != OnFailure.FIRST_STAGE:
                raise
            return shortened, replace(report, reason=f"no second ranking: {message_for_caller(error)}")

    async def _find_new(self, query: Query, candidates: tuple[Passage, ...], deadline_s: float) -> tuple[Passage, ...]:
        known = {candidate.doc_id for candidate in candidates}
        _, found = await self.retrieve(query, deadline_s)
        return tuple(candidate for candidate in found if candidate.doc_id not in known)

    async def _rank_union(
        self, first: Ranking, new: tuple[Passage, ...], options: RankOptions, deadline_s: float
    ) -> Ranking:
        """Ranks the union; never returns a partial ranking, which would be worse than the complete first one."""
        union = (*(ranked.passage for ranked in first.ranked), *new)
        complete = replace(options, allow_partial=False, on_failure=OnFailure.ERROR)
        second = await self.rank(union, complete, deadline_s - options.answer_margin_s)
        positions = [*(ranked.position for ranked in first.ranked), *range(len(first.ranked), len(union))]
        renumbered = tuple(replace(ranked, position=positions[ranked.position]) for ranked in second.ranked)
        windows = tuple(
            replace(window, positions=tuple(positions[position] for position in window.positions))
            for window in second.trace.windows
        )
        return Ranking(
            renumbered, second.score_kind, replace(second.trace, windows=windows, input_order=tuple(positions))
        )


def by_model(query: Query, ranking: Ranking) -> QueryUpdates:
    """Makes the updates of a query whose new vector the ranker made (E2Rank)."""
    if query.vector is None:
        raise ValueError("the query has no vector to update; this is a bug")
    found = ranking.trace.query_vector
    outcome = UpdateOutcome.TOO_FEW_PASSAGES if found is None else UpdateOutcome.UPDATED
    vector, updated = (torch.from_numpy(query.vector if v is None else v)[None] for v in (query.vector, found))
    cosines = torch.nn.functional.cosine_similarity(vector, updated, dim=-1)
    return QueryUpdates(updated, cosines, (outcome,))


def update_query(query: Query, ranking: Ranking, settings: FeedbackSettings) -> QueryUpdates:
    """Updates the vector of one query towards the first `settings.top_k` passages of a ranking.

    Returns:
        QueryUpdates of one query.
    """
    if query.vector is None:
        raise ValueError("the query has no vector to update; this is a bug")
    ranked = ranking.ranked[: settings.top_k]
    vectors = [item.passage.vector for item in ranked]
    passages = [np.zeros_like(query.vector) if vector is None else vector for vector in vectors]
    teacher = teacher_of(settings.method, [item.score for item in ranked], ranking.score_kind)
    return update_queries(
        torch.from_numpy(query.vector)[None],
        torch.from_numpy(np.array(passages, dtype=np.float32).reshape(1, len(ranked), len(query.vector))),
        torch.tensor([teacher], dtype=torch.float32),
        torch.tensor([[vector is not None for vector in vectors]], dtype=torch.bool),
        settings,
    )


def _ms_since(start_s: float) -> float:
    return (time.perf_counter() - start_s) * 1000
