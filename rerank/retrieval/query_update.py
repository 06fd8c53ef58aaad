"""Relevance feedback at inference: updates query vectors so that the retriever's scores follow a ranking.

ReFIT (Reddy et al., arXiv 2305.11744) uses a reranker's scores of the top k passages as the teacher of the retriever.
The query vector is the only parameter; the passage vectors and the encoder stay as they are. FIRST (Gangi Reddy et al.,
arXiv 2406.15657) does the same with a listwise LLM, which gives an order only, and therefore with a ranking loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.nn import functional

from rerank.retrieval.losses import ListLosses, kl_divergence, weighted_ranknet
from rerank.types import FeedbackMethod, FeedbackSettings, ScoreKind

#: Two inner products of unit vectors that differ by less than this differ by rounding only.
_SAME_SCORE = 1e-6
#: Range of the scaled scores when the teacher is an order. At this distance, a correctly ordered pair has
#: almost no gradient left and a wrongly ordered pair has its full gradient.
_ORDER_RANGE = 8.0
#: Weights of the query, the mean relevant passage and the mean non-relevant passage (Salton and Buckley 1990).
_ROCCHIO_WEIGHTS = (1.0, 0.75, 0.15)
#: Rocchio treats this many top passages as relevant, but at most half of the list.
_ROCCHIO_RELEVANT = 10


class UpdateOutcome(Enum):
    """Result of one query vector update; the value is the reason when the vector was kept."""

    UPDATED = ""
    TOO_FEW_PASSAGES = "fewer than two ranked passages have a vector"
    EQUAL_SCORES = "the retriever gives all ranked passages the same score"
    NO_PREFERENCE = "the ranking puts no passage above another"
    #: Of a method that minimises a loss.
    NO_GAIN = "the updated vector fits the ranking no better than the original one"


@dataclass(frozen=True, slots=True)
class QueryUpdates:
    """Updated vectors of Q queries.

    Attributes:
        vectors: (Q, D) unit vectors; the original vector of a query that was not updated.
        cosines: (Q,) between each returned vector and the original one; 1 for a query that was not updated.
        outcomes: one per query.
    """

    vectors: Tensor
    cosines: Tensor
    outcomes: tuple[UpdateOutcome, ...]


def teacher_of(method: FeedbackMethod, scores: Sequence[float], kind: ScoreKind) -> list[float]:
    """The target of a query update, made of the scores of a ranking: their ranks, equal for ties, or logits for KL.

    Args:
        kind: the meaning of the scores; the logit of a probability is the logarithm of its odds.
    """
    if method is not FeedbackMethod.KL:
        rank = {score: float(place) for place, score in enumerate(sorted(set(scores)))}
        return [rank[score] for score in scores]
    if kind is not ScoreKind.POINTWISE_PROBABILITY:
        return list(scores)
    return torch.tensor(scores, dtype=torch.float64).logit(eps=_SAME_SCORE).tolist()


def update_queries(
    vectors: Tensor, passages: Tensor, teacher: Tensor, mask: Tensor, settings: FeedbackSettings
) -> QueryUpdates:
    """Updates each query vector towards its teacher, independently of the other queries of the batch.

    The loss reads inner products, scaled by one factor per query so that with the original vector their range is half
    the range of the teacher's scores (ReFIT), or _ORDER_RANGE when the teacher is an order.

    Args:
        vectors: (Q, D) unit vectors of the queries.
        passages: (Q, k, D) unit vectors; entries where `mask` is False are ignored.
        teacher: (Q, k), higher is better. KL reads it as logits, the other methods as an order with ties.
        mask: (Q, k) bool, False at padding and at passages without a vector.
    """
    if not mask.any():
        return _no_passages(vectors)
    passages = passages.masked_fill(~mask[:, :, None], 0)
    teacher = teacher.to(vectors.dtype).masked_fill(~mask, 0)
    initial = _scores(vectors, passages)
    objective = _objective(settings.method, initial, teacher, mask)
    if settings.method is FeedbackMethod.ROCCHIO:
        updated = _rocchio_by_order(vectors, passages, teacher, mask)
    else:
        updated = _gradient_descent(vectors, passages, objective, settings)
    updated = functional.normalize(_project(updated, vectors, settings.min_cosine), dim=-1)
    falls = objective(_scores(updated, passages)) < objective(initial)
    is_better = falls.tolist() if settings.method.is_a_loss else [True] * len(vectors)
    outcomes = tuple(
        obstacle or (UpdateOutcome.UPDATED if better else UpdateOutcome.NO_GAIN)
        for obstacle, better in zip(_obstacles(initial, teacher, mask), is_better, strict=True)
    )
    kept = torch.tensor([outcome is not UpdateOutcome.UPDATED for outcome in outcomes], device=vectors.device)
    return QueryUpdates(
        vectors=torch.where(kept[:, None], vectors, updated),
        cosines=functional.cosine_similarity(vectors, updated, dim=-1).masked_fill(kept, 1.0),
        outcomes=outcomes,
    )


def _no_passages(vectors: Tensor) -> QueryUpdates:
    return QueryUpdates(vectors, torch.ones_like(vectors[:, 0]), (UpdateOutcome.TOO_FEW_PASSAGES,) * len(vectors))


def _obstacles(initial: Tensor, teacher: Tensor, mask: Tensor) -> list[UpdateOutcome | None]:
    """For each query, the reason why no update can lower the loss; None when one can."""
    conditions = {
        UpdateOutcome.TOO_FEW_PASSAGES: (mask.sum(dim=-1) < 2).tolist(),
        UpdateOutcome.EQUAL_SCORES: (_range(initial, mask) <= _SAME_SCORE).tolist(),
        UpdateOutcome.NO_PREFERENCE: (_range(teacher, mask) == 0).tolist(),
    }
    return [next((outcome for outcome, met in conditions.items() if met[row]), None) for row in range(len(mask))]


def _objective(method: FeedbackMethod, initial: Tensor, teacher: Tensor, mask: Tensor) -> ListLosses:
    """The loss of (Q, k) inner products against the teacher, as a function that returns (Q,) losses."""
    if method is FeedbackMethod.E2RANK:
        raise ValueError("e2rank makes a vector without a loss; this is a bug")
    if method is FeedbackMethod.KL:
        loss, target_range = kl_divergence(teacher, mask), _range(teacher, mask) / 2
    else:
        loss, target_range = weighted_ranknet(teacher, mask), torch.full_like(initial[:, 0], _ORDER_RANGE)
    scale = (target_range / _range(initial, mask).clamp(min=_SAME_SCORE))[:, None]
    return lambda scores: loss(scale * scores)


@torch.enable_grad()
def _gradient_descent(vectors: Tensor, passages: Tensor, objective: ListLosses, settings: FeedbackSettings) -> Tensor:
    """(Q, D). Adam treats each coordinate separately, so minimising the sum minimises the loss of each query."""
    updated = vectors.clone().requires_grad_()
    steps, learning_rate = settings.descent
    optimizer = torch.optim.Adam([updated], lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(_scores(updated, passages)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            updated.copy_(_project(updated, vectors, settings.min_cosine))
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
        relevant, non_relevant: (Q, k) weights of the passages in the means, at least 0; None: all are 0.
        weights: of the query, of the mean relevant and of the mean non-relevant passage.
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
    """(Q, D): `updated` projected onto the cone of cosine `min_cosine` around `vectors`; lengths are kept."""
    parallel = (updated * vectors).sum(dim=-1, keepdim=True)
    length = updated.norm(dim=-1, keepdim=True)
    orthogonal = functional.normalize(updated - parallel * vectors, dim=-1)
    boundary = min_cosine * vectors + (1 - min_cosine**2) ** 0.5 * orthogonal
    return torch.where(parallel >= min_cosine * length, updated, length * boundary)


def _scores(vectors: Tensor, passages: Tensor) -> Tensor:
    """(Q, k) inner products."""
    return torch.einsum("qd,qkd->qk", vectors, passages)


def _range(values: Tensor, mask: Tensor) -> Tensor:
    """(Q,): difference between the largest and the smallest value where `mask` is True; 0 for an empty row."""
    largest = values.masked_fill(~mask, -torch.inf).amax(dim=-1)
    return (largest - values.masked_fill(~mask, torch.inf).amin(dim=-1)).clamp(min=0)


def _mean(passages: Tensor, weights: Tensor) -> Tensor:
    """(Q, D): the weighted mean of the passages; 0 where all weights of a row are 0."""
    weights = weights.to(passages.dtype)
    total = weights.sum(dim=-1, keepdim=True)
    return torch.einsum("qk,qkd->qd", weights, passages) / total.masked_fill(total == 0, 1)
