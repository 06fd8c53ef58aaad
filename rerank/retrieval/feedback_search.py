"""Search with relevance feedback: what the ranking of the first candidates teaches the retriever, and what that finds.

The union of both retrievals is ranked as one list: the candidates in the order of the first ranking, then the new
passages. One ranking then gives order, scores and trace, so that what a reply says of itself stays true; the price is
one more pass. Where nothing new was found, the first ranking is the answer and the price is a second retrieval.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import numpy as np
import torch

from rerank.errors import DeadlineExceeded, Overloaded
from rerank.retrieval.query_update import FeedbackSettings, Moves, Outcome, move
from rerank.types import Candidate, FeedbackMethod, Query, Ranking, RankOptions, ScoreKind

T = TypeVar("T")

#: Candidates, options, deadline → their ranking.
Rank: TypeAlias = Callable[[tuple[Candidate, ...], RankOptions, float | None], Awaitable[Ranking]]
#: A query, deadline → the query with its vector, and what the retriever finds for it.
Retrieve: TypeAlias = Callable[[Query, float | None], Awaitable[tuple[Query, tuple[Candidate, ...]]]]

_KL_READS_SCORES = "kl reads scores, and this ranking has ranks only; use weighted-ranknet"


@dataclass(frozen=True, slots=True)
class FeedbackReport:
    """What feedback did; see FeedbackReport in the wire contract."""

    method: FeedbackMethod
    moved: bool
    reason: str
    cosine: float = 1.0
    loss_before: float = 0.0
    loss_after: float = 0.0
    new_passages: int = 0
    first_ranking_ms: float = 0.0
    move_ms: float = 0.0
    second_retrieval_ms: float = 0.0
    second_ranking_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class FeedbackSearch:
    """How one search goes on after the first retrieval.

    Args:
        settings: how the vector moves.
        rank, retrieve: may raise DeadlineExceeded and Overloaded.
        answer_margin_s: how long before its deadline a partial answer is given.
    """

    settings: FeedbackSettings
    rank: Rank
    retrieve: Retrieve
    answer_margin_s: float

    async def run(
        self, query: Query, candidates: tuple[Candidate, ...], options: RankOptions, deadline: float | None
    ) -> tuple[Ranking, FeedbackReport]:
        """The ranking of all that was found. Positions count the candidates first, then what is new.

        With `options.allow_partial`, the first ranking is the answer where there is no time for the second.

        Args:
            query: with its vector.
            candidates: what the first stage found for it, which may be nothing.
            deadline: on the event loop's clock, in seconds.

        Raises:
            DeadlineExceeded, Overloaded: without `options.allow_partial`.
        """
        method = self.settings.method
        first, first_ms = await _timed(self.rank(candidates, replace(options, top_n=0), deadline))
        shortened = replace(first, ranked=first.ranked[: options.top_n or None])
        if method is FeedbackMethod.KL and first.score_kind is ScoreKind.RANK and first.ranked:
            return shortened, FeedbackReport(method, False, _KL_READS_SCORES, first_ranking_ms=first_ms)
        moves, move_ms = await _timed(asyncio.to_thread(follow, query, first, self.settings))
        report = _report(method, moves, first_ms, move_ms)
        if not report.moved:
            return shortened, report
        try:
            moved = replace(query, vector=moves.vectors[0].numpy())
            new, retrieval_ms = await _timed(self._find_new(moved, candidates, self._margin_before(deadline, options)))
            report = replace(report, new_passages=len(new), second_retrieval_ms=retrieval_ms)
            if not new:
                return shortened, report
            second, ranking_ms = await _timed(self._rank_union(first, new, options, deadline))
        except (DeadlineExceeded, Overloaded) as error:
            if not options.allow_partial:
                raise
            return shortened, replace(report, new_passages=0, reason=f"no second ranking: {error}")
        return second, replace(report, second_ranking_ms=ranking_ms)

    async def _find_new(
        self, moved: Query, candidates: tuple[Candidate, ...], deadline: float | None
    ) -> tuple[Candidate, ...]:
        known = {candidate.passage.doc_id for candidate in candidates}
        _, found = await self.retrieve(moved, deadline)
        return tuple(candidate for candidate in found if candidate.passage.doc_id not in known)

    async def _rank_union(
        self, first: Ranking, new: tuple[Candidate, ...], options: RankOptions, deadline: float | None
    ) -> Ranking:
        """All or nothing: half a second ranking is worse than the first."""
        union = (*(ranked.candidate for ranked in first.ranked), *new)
        whole = replace(options, allow_partial=False)
        second = await self.rank(union, whole, self._margin_before(deadline, options))
        positions = [*(ranked.position for ranked in first.ranked), *range(len(first.ranked), len(union))]
        renumbered = tuple(replace(ranked, position=positions[ranked.position]) for ranked in second.ranked)
        return replace(second, ranked=renumbered)

    def _margin_before(self, deadline: float | None, options: RankOptions) -> float | None:
        return deadline - self.answer_margin_s if deadline is not None and options.allow_partial else deadline


def follow(query: Query, ranking: Ranking, settings: FeedbackSettings) -> Moves:
    """Moves the vector of `query` after the first `settings.top_k` of a ranking."""
    if query.vector is None:
        raise ValueError("the query has no vector that could move; this is a bug")
    ranked = ranking.ranked[: settings.top_k]
    vectors = [item.candidate.passage.vector for item in ranked]
    passages = [np.zeros_like(query.vector) if vector is None else vector for vector in vectors]
    teacher = [item.score if settings.method is FeedbackMethod.KL else -float(rank) for rank, item in enumerate(ranked)]
    return move(
        torch.from_numpy(query.vector)[None],
        torch.from_numpy(np.array(passages, dtype=np.float32).reshape(1, len(ranked), len(query.vector))),
        torch.tensor([teacher]),
        torch.tensor([[vector is not None for vector in vectors]], dtype=torch.bool),
        settings,
    )


def _report(method: FeedbackMethod, moves: Moves, first_ranking_ms: float, move_ms: float) -> FeedbackReport:
    (outcome,) = moves.outcomes
    return FeedbackReport(
        method=method,
        moved=outcome is Outcome.MOVED,
        reason=outcome.value,
        cosine=float(moves.cosines[0]),
        loss_before=float(moves.losses_before[0]),
        loss_after=float(moves.losses_after[0]),
        first_ranking_ms=first_ranking_ms,
        move_ms=move_ms,
    )


async def _timed(work: Awaitable[T]) -> tuple[T, float]:
    """What it gives, and the milliseconds that it took."""
    begun = time.perf_counter()
    return await work, (time.perf_counter() - begun) * 1000
