"""Relevance feedback at inference: ranks, updates the query vector towards that ranking, retrieves again, and ranks.

ReFIT (Reddy et al., arXiv 2305.11744) uses a reranker's scores of the top k passages as the teacher of the retriever.
Only the query vector is updated, neither the passage vectors nor the encoder. FIRST (Gangi Reddy et al., arXiv
2406.15657) has two updates, the method chain: the first by a cross-encoder's scores, the second by the order of a
listwise LLM, which has no scores and is therefore used with a ranking loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rerank.errors import FAILURES, DeadlineExceeded, Overloaded, message_for_caller
from rerank.retrieval.losses import ListLosses, kl_divergence, weighted_ranknet
from rerank.types import (
    FeedbackMethod,
    FeedbackSettings,
    OnFailure,
    Passage,
    Query,
    Ranking,
    RankOptions,
    ScoreKind,
    Vector,
    preranker_scores,
)

#: Inner products of unit vectors with a smaller difference count as equal, because rounding alone can cause it.
_SAME_SCORE = 1e-6
#: Range of the scaled scores if the teacher is an order. At this difference of scores, a correctly ordered pair has
#: almost no gradient and a wrongly ordered pair the full gradient. FIRST's range is some .1 for unit vectors, so that
#: all pairs have about the same gradient.
_ORDER_RANGE = 8.0
#: Weights of the query, the mean relevant passage and the mean non-relevant passage (Salton and Buckley 1990).
_ROCCHIO_WEIGHTS = (1.0, 0.75, 0.15)
#: Rocchio treats this many top passages as relevant, but at most half of the list.
_ROCCHIO_RELEVANT = 10
_KL_NEEDS_SCORES = "the method kl reads scores, but the scores of this ranking are ranks only; use weighted-ranknet"
_CHAIN_NEEDS_SCORES = (
    "the method chain reads the preranker's scores, but they are ranks only, or of windows that cannot be compared; "
    "use weighted-ranknet"
)


class UpdateOutcome(Enum):
    """Result of one query vector update; the value is the reason if the vector was kept."""

    UPDATED = ""
    TOO_FEW_PASSAGES = "fewer than two ranked passages have a vector"
    EQUAL_SCORES = "the retriever gives all ranked passages the same score"
    NO_PREFERENCE = "the ranking puts no passage above another"
    NO_GAIN = "the updated vector fits the ranking no better than the original one"


@dataclass(frozen=True, slots=True)
class QueryUpdates:
    """Updated vectors of Q queries.

    Attributes:
        vectors: (Q, D) unit vectors; a query that was not updated has its original vector.
        cosines: (Q,) cosine of each vector with the original one; 1 for a query that was not updated.
        outcomes: the outcome of each query.
    """

    vectors: Tensor
    cosines: Tensor
    outcomes: tuple[UpdateOutcome, ...]


def teacher_of(method: FeedbackMethod, scores: Sequence[float], kind: ScoreKind) -> list[float]:
    """The target of a query update by a ranking, higher is better: logits for KL, otherwise ranks of the scores.

    Ranks count from 0 for the lowest score; equal scores have the same rank.

    Args:
        scores: scores of the ranked passages.
        kind: meaning of the scores; the logit of a probability is the logarithm of its odds.
    """
    if method is not FeedbackMethod.KL:
        rank = {score: float(index) for index, score in enumerate(sorted(set(scores)))}
        return [rank[score] for score in scores]
    if kind is not ScoreKind.POINTWISE_PROBABILITY:
        return list(scores)
    return torch.tensor(scores, dtype=torch.float64).logit(eps=_SAME_SCORE).tolist()


def update_queries(
    vectors: Tensor,
    passages: Tensor,
    teacher: Tensor,
    mask: Tensor,
    settings: FeedbackSettings,
    preranker: Tensor | None = None,
) -> QueryUpdates:
    """Updates each query vector towards its teacher, independently of the other queries of the batch.

    The loss reads inner products times a factor for each query. With KL, their range before the update is half the
    range of the teacher's scores, as in ReFIT. If the teacher is an order, it is _ORDER_RANGE; in FIRST it is half the
    range of the retriever's scores, which FIRST sorts and assigns to the passages in the teacher's order.

    Args:
        vectors: (Q, D) unit vectors of the queries.
        passages: (Q, k, D) unit vectors; entries where `mask` is False are ignored.
        teacher: (Q, k), higher is better. KL reads it as logits, the other methods as an order with ties.
        mask: (Q, k) bool, False at padding and at passages without a vector.
        settings: method and limits of the update.
        preranker: (Q, k) logits of the preranker, the teacher of the first update of a chain; nan if a passage has
            none.
    """
    if not mask.any():
        outcomes = (UpdateOutcome.TOO_FEW_PASSAGES,) * len(vectors)
        return QueryUpdates(vectors, torch.ones_like(vectors[:, 0]), outcomes)
    updates = [(settings, teacher)]
    if settings.method is FeedbackMethod.CHAIN:
        if preranker is None:
            raise ValueError("a chain has no scores of its preranker; this is a bug")
        updates = list(zip(settings.of_chain, (preranker, teacher), strict=True))
    updated, of_updates = vectors, list[tuple[UpdateOutcome, ...]]()
    for one, target in updates:
        updated, now = _update(updated, vectors, passages, target, mask & target.isfinite(), one)
        of_updates.append(now)
    outcomes = tuple(
        UpdateOutcome.UPDATED if UpdateOutcome.UPDATED in of_query else of_query[-1]
        for of_query in zip(*of_updates, strict=True)
    )
    kept = torch.tensor([outcome is not UpdateOutcome.UPDATED for outcome in outcomes], device=vectors.device)
    return QueryUpdates(
        vectors=torch.where(kept[:, None], vectors, functional.normalize(updated, dim=-1)),
        cosines=functional.cosine_similarity(vectors, updated, dim=-1).masked_fill(kept, 1.0),
        outcomes=outcomes,
    )


def _update(
    vectors: Tensor, original: Tensor, passages: Tensor, teacher: Tensor, mask: Tensor, settings: FeedbackSettings
) -> tuple[Tensor, tuple[UpdateOutcome, ...]]:
    """(Q, D) vectors after one update, and its outcomes. The vectors may have any length, as in FIRST's chain.

    Args:
        vectors: (Q, D) vectors to start from.
        original: (Q, D) unit vectors of the queries, the centres of the trust regions.
    """
    passages = passages.masked_fill(~mask[:, :, None], 0)
    teacher = teacher.to(vectors.dtype).masked_fill(~mask, 0)
    initial = _scores(vectors, passages)
    objective = _objective(settings.method, initial, _scores(original, passages), teacher, mask)
    if settings.method is FeedbackMethod.ROCCHIO:
        updated = _rocchio_by_order(vectors, passages, teacher, mask)
    else:
        updated = _gradient_descent(vectors, original, passages, objective, settings)
    updated = _project(updated, original, settings.min_cosine)
    before, after = (objective(_scores(functional.normalize(of, dim=-1), passages)) for of in (vectors, updated))
    is_better = (after < before).tolist() if settings.method.is_a_loss else [True] * len(vectors)
    outcomes = tuple(
        reason or (UpdateOutcome.UPDATED if better else UpdateOutcome.NO_GAIN)
        for reason, better in zip(_reasons_to_keep(initial, teacher, mask), is_better, strict=True)
    )
    kept = torch.tensor([outcome is not UpdateOutcome.UPDATED for outcome in outcomes], device=vectors.device)
    return torch.where(kept[:, None], vectors, updated), outcomes


def _reasons_to_keep(initial: Tensor, teacher: Tensor, mask: Tensor) -> list[UpdateOutcome | None]:
    """For each query, the reason why no update can lower the loss, or None."""
    conditions = {
        UpdateOutcome.TOO_FEW_PASSAGES: (mask.sum(dim=-1) < 2).tolist(),
        UpdateOutcome.EQUAL_SCORES: (_range(initial, mask) <= _SAME_SCORE).tolist(),
        UpdateOutcome.NO_PREFERENCE: (_range(teacher, mask) == 0).tolist(),
    }
    return [next((outcome for outcome, met in conditions.items() if met[row]), None) for row in range(len(mask))]


def _objective(method: FeedbackMethod, initial: Tensor, original: Tensor, teacher: Tensor, mask: Tensor) -> ListLosses:
    """The loss as a function: (Q, k) inner products → (Q,) losses.

    Args:
        initial: (Q, k) inner products of the passages with the vectors before the update.
        original: (Q, k) inner products of the passages with the original vectors of the queries.
    """
    if method is FeedbackMethod.E2RANK:
        raise ValueError("e2rank has no loss; this is a bug")
    if method is FeedbackMethod.KL:
        loss, target_range = kl_divergence(teacher, mask), _range(teacher, mask) / 2
    elif method is FeedbackMethod.WEIGHTED_RANKNET_FIRST:
        loss, target_range = weighted_ranknet(teacher, mask), _range(original, mask) / 2
    else:
        loss, target_range = weighted_ranknet(teacher, mask), torch.full_like(initial[:, 0], _ORDER_RANGE)
    scale = (target_range / _range(initial, mask).clamp(min=_SAME_SCORE))[:, None]
    return lambda scores: loss(scale * scores)


@torch.enable_grad()
def _gradient_descent(
    vectors: Tensor, original: Tensor, passages: Tensor, objective: ListLosses, settings: FeedbackSettings
) -> Tensor:
    """(Q, D) vectors after Adam, which treats coordinates separately: the sum of the losses minimises each of them."""
    updated = vectors.clone().requires_grad_()
    steps, learning_rate = settings.descent
    optimizer = torch.optim.Adam([updated], lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(_scores(updated, passages)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            updated.copy_(_project(updated, original, settings.min_cosine))
    return updated.detach()


def rocchio(
    vectors: Tensor,
    passages: Tensor,
    relevant: Tensor,
    non_relevant: Tensor | None = None,
    weights: tuple[float, float, float] = _ROCCHIO_WEIGHTS,
) -> Tensor:
    """(Q, D): the query plus the mean relevant passage minus the mean non-relevant passage, weighted (Rocchio 1971).

    Args:
        vectors: (Q, D) vectors of the queries.
        passages: (Q, k, D) vectors of the passages.
        relevant, non_relevant: (Q, k) weights of the passages in the two means, at least 0; None for 0.
        weights: weights of the query, the mean relevant passage and the mean non-relevant passage.
    """
    of_query, of_relevant, of_non_relevant = weights
    updated = of_query * vectors + of_relevant * _mean(passages, relevant)
    return updated if non_relevant is None else updated - of_non_relevant * _mean(passages, non_relevant)


def _rocchio_by_order(vectors: Tensor, passages: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """(Q, D): `rocchio` with the first passages of the teacher's order as the relevant ones."""
    order = teacher.masked_fill(~mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    n_relevant = (mask.sum(dim=-1, keepdim=True) // 2).clamp(max=_ROCCHIO_RELEVANT)
    relevant = mask & (order.argsort(dim=-1) < n_relevant)
    return rocchio(vectors, passages, relevant, mask & ~relevant)


def _project(updated: Tensor, vectors: Tensor, min_cosine: float) -> Tensor:
    """(Q, D): `updated`, rotated towards the unit `vectors` until their cosine is at least `min_cosine`."""
    parallel = (updated * vectors).sum(dim=-1, keepdim=True)
    length = updated.norm(dim=-1, keepdim=True)
    orthogonal = functional.normalize(updated - parallel * vectors, dim=-1)
    boundary = min_cosine * vectors + (1 - min_cosine**2) ** 0.5 * orthogonal
    return torch.where(parallel >= min_cosine * length, updated, length * boundary)


def _scores(vectors: Tensor, passages: Tensor) -> Tensor:
    """(Q, k) inner products of vectors (Q, D) with passages (Q, k, D)."""
    return torch.einsum("qd,qkd->qk", vectors, passages)


def _range(values: Tensor, mask: Tensor) -> Tensor:
    """(Q,): difference between the largest and the smallest value where `mask` is True; 0 in a row without True."""
    largest = values.masked_fill(~mask, -torch.inf).amax(dim=-1)
    return (largest - values.masked_fill(~mask, torch.inf).amin(dim=-1)).clamp(min=0)


def _mean(passages: Tensor, weights: Tensor) -> Tensor:
    """(Q, D): the weighted mean of the passages; 0 where all weights of a row are 0."""
    weights = weights.to(passages.dtype)
    total = weights.sum(dim=-1, keepdim=True)
    return torch.einsum("qk,qkd->qd", weights, passages) / total.masked_fill(total == 0, 1)


#: (candidates, options, deadline_s) → their ranking.
Rank: TypeAlias = Callable[[tuple[Passage, ...], RankOptions, float], Awaitable[Ranking]]
#: (query, deadline_s) → the query with its vector, and the candidates that the retriever finds for it.
Retrieve: TypeAlias = Callable[[Query, float], Awaitable[tuple[Query, tuple[Passage, ...]]]]
#: Computes the updates of the query on another thread.
UpdateOnThread: TypeAlias = Callable[[Callable[[], QueryUpdates]], Awaitable[QueryUpdates]]


@dataclass(frozen=True, slots=True)
class FeedbackReport:
    """Result and time of relevance feedback for one search.

    Attributes:
        reason: why the answer is the first ranking: the query vector was not updated, or the second ranking failed;
            empty if the answer is the second ranking, or nothing new was found.
        cosine: cosine of the updated and the original query vector; 1 if it was not updated.
        ms: time of the first ranking, the update and the second retrieval together, in milliseconds.
    """

    reason: str
    cosine: float = 1.0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class FeedbackSearch:
    """One search with relevance feedback, from the first ranking on.

    The union of both retrievals is ranked as one list: the candidates of the first retrieval in the order of the first
    ranking, followed by the new passages. So order, scores and trace of the reply come from one ranking and agree; the
    cost is a second pass of the ranker. If the second retrieval finds nothing new, the first ranking is the answer, and
    the cost is the second retrieval only.

    Args:
        settings: settings of the update.
        rank: ranks candidates; may raise FAILURES.
        retrieve: retrieves candidates by the vector of a query; may raise FAILURES.
        on_thread: runs the update of the query.
    """

    settings: FeedbackSettings
    rank: Rank
    retrieve: Retrieve
    on_thread: UpdateOnThread

    async def run(
        self, query: Query, candidates: tuple[Passage, ...], options: RankOptions, deadline_s: float
    ) -> tuple[Ranking, FeedbackReport]:
        """The ranking of the union of both retrievals. Its positions count `candidates` first, then the new passages.

        The first ranking is the answer if the second has no time and `options.allow_partial` is set, or if the second
        fails and `options.on_failure` is the first stage.

        Args:
            query: the query, with its vector.
            candidates: the result of the first retrieval, which may be empty.
            deadline_s: deadline on the event loop's clock; infinite for none.

        Raises:
            DeadlineExceeded, Overloaded: neither `options.allow_partial` nor `options.on_failure` allows the first
                ranking.
            FAILURES: a ranking or a retrieval failed, and `options.on_failure` does not allow the first ranking.
        """
        if query.vector is None:
            raise ValueError("the query has no vector to update; this is a bug")
        method, start_s = self.settings.method, time.perf_counter()
        first = await self.rank(candidates, replace(options, top_n=0), deadline_s)
        shortened = replace(first, ranked=first.ranked[: options.top_n or None])
        if first.trace.failure:
            reason = f"the first ranking was not completed: {first.trace.reason}"
            return shortened, FeedbackReport(reason, ms=_ms_since(start_s))
        if method is FeedbackMethod.KL and first.score_kind is ScoreKind.RANK and first.ranked:
            return shortened, FeedbackReport(_KL_NEEDS_SCORES, ms=_ms_since(start_s))
        if method is FeedbackMethod.CHAIN and first.ranked and not preranker_scores(first.trace.windows)[1]:
            return shortened, FeedbackReport(_CHAIN_NEEDS_SCORES, ms=_ms_since(start_s))
        if method is FeedbackMethod.E2RANK:
            updates = update_by_ranker(query.vector, first)
        else:
            updates = await self.on_thread(partial(update_query, query.vector, first, self.settings))
        report = FeedbackReport(updates.outcomes[0].value, float(updates.cosines[0]), _ms_since(start_s))
        if report.reason:
            return shortened, report
        try:
            updated = replace(query, vector=updates.vectors[0].numpy())
            _, found = await self.retrieve(updated, deadline_s - options.answer_margin_s)
            known = {candidate.doc_id for candidate in candidates}
            new = tuple(candidate for candidate in found if candidate.doc_id not in known)
            report = replace(report, ms=_ms_since(start_s))
            if not new:
                return shortened, report
            return await self._rank_union(first, new, options, deadline_s), report
        except tuple(FAILURES) as error:
            is_allowed = options.allow_partial and isinstance(error, DeadlineExceeded | Overloaded)
            if not is_allowed and options.on_failure != OnFailure.FIRST_STAGE:
                raise
            return shortened, replace(report, reason=f"no second ranking: {message_for_caller(error)}")

    async def _rank_union(
        self, first: Ranking, new: tuple[Passage, ...], options: RankOptions, deadline_s: float
    ) -> Ranking:
        """Ranks the union. It never returns a partial ranking, because the complete first ranking would be better."""
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


def update_by_ranker(vector: Vector, ranking: Ranking) -> QueryUpdates:
    """The update of one query to the vector that the ranker computed (E2Rank)."""
    found = ranking.trace.query_vector
    outcome = UpdateOutcome.TOO_FEW_PASSAGES if found is None else UpdateOutcome.UPDATED
    before, updated = (torch.from_numpy(vector if v is None else v)[None] for v in (vector, found))
    return QueryUpdates(updated, functional.cosine_similarity(before, updated, dim=-1), (outcome,))


def update_query(vector: Vector, ranking: Ranking, settings: FeedbackSettings) -> QueryUpdates:
    """Updates the vector of one query towards the first `settings.top_k` passages of a ranking."""
    ranked = ranking.ranked[: settings.top_k]
    vectors = [item.passage.vector for item in ranked]
    passages = [np.zeros_like(vector) if of_passage is None else of_passage for of_passage in vectors]
    teacher = teacher_of(settings.method, [item.score for item in ranked], ranking.score_kind)
    preranker = None
    if settings.method is FeedbackMethod.CHAIN:
        kind, scores = preranker_scores(ranking.trace.windows)
        of_ranked = [scores.get(item.position, math.nan) for item in ranked]
        preranker = torch.tensor([teacher_of(FeedbackMethod.KL, of_ranked, kind)], dtype=torch.float32)
    return update_queries(
        torch.from_numpy(vector)[None],
        torch.from_numpy(np.array(passages, dtype=np.float32).reshape(1, len(ranked), len(vector))),
        torch.tensor([teacher], dtype=torch.float32),
        torch.tensor([[of_passage is not None for of_passage in vectors]], dtype=torch.bool),
        settings,
        preranker,
    )


def _ms_since(start_s: float) -> float:
    return (time.perf_counter() - start_s) * 1000
