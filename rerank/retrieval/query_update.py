"""Relevance feedback at inference: a query's vector moves until the retriever's scores follow a ranking.

ReFIT (Reddy et al., arXiv 2305.11744) takes a reranker's order of the first k passages as a teacher for the retriever.
The query's vector is the only parameter; passages and encoder stay as they are. FIRST (Gangi Reddy et al., arXiv
2406.15657) does it with a listwise LLM, of which only the order carries information, and a rank loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from rerank.types import FeedbackMethod

#: (Q, k) scores → (Q,) losses.
_Objective: TypeAlias = Callable[[Tensor], Tensor]

#: Inner products of unit vectors that differ by less are equal but for rounding.
_SAME_SCORE = 1e-6
#: How wide the stretched scores spread where the teacher is an order. A pair that agrees by all of it hardly pulls any
#: more; one that disagrees by as much pulls with its whole weight.
_ORDER_SPREAD = 8.0
#: Weights of the original vector, of the mean of the relevant passages and of the others (Salton and Buckley 1990).
_ROCCHIO_WEIGHTS = (1.0, 0.75, 0.15)
#: How many of the ranking's first passages Rocchio takes as relevant; of a short list, half.
_ROCCHIO_RELEVANT = 10


@dataclass(frozen=True, slots=True)
class FeedbackSettings:
    """How a ranking moves the vector.

    top_k: passages that teach, from the top of the ranking.
    steps, learning_rate: of Adam; each step moves a coordinate by about learning_rate. Rocchio reads neither.
    min_cosine: the trust region, below 1. The vector moves no further from where it was.
    """

    method: FeedbackMethod = FeedbackMethod.WEIGHTED_RANKNET
    top_k: int = 100
    steps: int = 20
    learning_rate: float = 1e-3
    min_cosine: float = 0.8


class Outcome(Enum):
    """Whether a vector moved, and if not, why."""

    MOVED = ""
    TOO_FEW = "fewer than two ranked passages have a vector"
    NO_CONTRAST = "the retriever scores all ranked passages alike"
    NO_PREFERENCE = "the ranking puts no passage above another"
    NO_GAIN = "the moved vector fits the ranking no better"


@dataclass(frozen=True, slots=True)
class Moves:
    """What became of Q vectors.

    Attributes:
        vectors: (Q, D) unit vectors; the original ones where nothing moved.
        cosines: (Q,) of each vector and the original one; 1 where nothing moved.
        losses_before, losses_after: (Q,) how badly the retriever's scores fit the teacher, with the original vector and
            with the answer. Rocchio's is that of weighted RankNet.
        outcomes: Q of them.
    """

    vectors: Tensor
    cosines: Tensor
    losses_before: Tensor
    losses_after: Tensor
    outcomes: tuple[Outcome, ...]


def move(vectors: Tensor, passages: Tensor, teacher: Tensor, mask: Tensor, settings: FeedbackSettings) -> Moves:
    """Moves each query's vector towards its teacher. A query's answer does not depend on the others.

    The loss reads inner products, stretched by one factor a query so that those of the original vector spread half as
    wide as the teacher's scores (ReFIT), or by _ORDER_SPREAD where the teacher is an order.

    Args:
        vectors: (Q, D) unit vectors.
        passages: (Q, k, D) unit vectors; what stands where `mask` is False is not read.
        teacher: (Q, k), higher is better. KL reads it as logits, the others as an order with ties.
        mask: (Q, k) bool, False at padding and at passages without a vector.
    """
    if not mask.any():
        return _unmoved(vectors)
    passages = passages.masked_fill(~mask[:, :, None], 0)
    teacher = teacher.to(vectors.dtype).masked_fill(~mask, 0)
    initial = _scores(vectors, passages)
    hopeless = _hopeless(initial, teacher, mask)
    fit = _fit(settings.method, initial, teacher, mask)
    if settings.method is FeedbackMethod.ROCCHIO:
        moved = _rocchio(vectors, passages, teacher, mask)
    else:
        moved = _descend(vectors, passages, fit, settings)
    moved = functional.normalize(_within(moved, vectors, settings.min_cosine), dim=-1)
    before, after = fit(initial), fit(_scores(moved, passages))
    outcomes = tuple(
        reason or (Outcome.MOVED if gain > 0 else Outcome.NO_GAIN)
        for reason, gain in zip(hopeless, (before - after).tolist(), strict=True)
    )
    stays = torch.tensor([outcome is not Outcome.MOVED for outcome in outcomes], device=vectors.device)
    return Moves(
        vectors=torch.where(stays[:, None], vectors, moved),
        cosines=functional.cosine_similarity(vectors, moved, dim=-1).masked_fill(stays, 1.0),
        losses_before=before,
        losses_after=torch.where(stays, before, after),
        outcomes=outcomes,
    )


def _unmoved(vectors: Tensor) -> Moves:
    """Where there is no passage at all."""
    zero = torch.zeros_like(vectors[:, 0])
    return Moves(vectors, zero + 1, zero, zero, (Outcome.TOO_FEW,) * len(vectors))


def _hopeless(initial: Tensor, teacher: Tensor, mask: Tensor) -> list[Outcome | None]:
    """For each query, why no vector could be better; None where one could."""
    too_few = (mask.sum(dim=-1) < 2).tolist()
    no_contrast = (_range(initial, mask) <= _SAME_SCORE).tolist()
    no_preference = (_range(teacher, mask) == 0).tolist()
    reasons = zip(too_few, no_contrast, no_preference, strict=True)
    return [
        Outcome.TOO_FEW if few else Outcome.NO_CONTRAST if alike else Outcome.NO_PREFERENCE if tied else None
        for few, alike, tied in reasons
    ]


def _fit(method: FeedbackMethod, initial: Tensor, teacher: Tensor, mask: Tensor) -> _Objective:
    """(Q, k) inner products → (Q,): how badly they fit the teacher."""
    if method is FeedbackMethod.KL:
        loss, spread = _kl(teacher, mask), _range(teacher, mask) / 2
    else:
        loss, spread = _weighted_ranknet(teacher, mask), torch.full_like(initial[:, 0], _ORDER_SPREAD)
    stretch = (spread / _range(initial, mask).clamp(min=_SAME_SCORE))[:, None]
    return lambda scores: loss(stretch * scores)


def _weighted_ranknet(teacher: Tensor, mask: Tensor) -> _Objective:
    """Mean over pairs i above j of log(1 + exp(s_j - s_i)) / (r_i + r_j), r the 1-based ranks (FIRST).

    Tied passages share their mean rank and are no pair.
    """
    above = (teacher[:, :, None] > teacher[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    level = (teacher[:, :, None] == teacher[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    ranks = above.sum(dim=1) + (level.sum(dim=1) + 1) / 2
    weights = above / (ranks[:, :, None] + ranks[:, None, :]) / above.sum(dim=(1, 2)).clamp(min=1)[:, None, None]
    return lambda scores: (weights * functional.softplus(scores[:, None, :] - scores[:, :, None])).sum(dim=(1, 2))


def _kl(teacher: Tensor, mask: Tensor) -> _Objective:
    """KL(softmax(teacher) || softmax(scores)), in nats."""
    target = _log_softmax(teacher, mask)
    return lambda scores: (target.exp() * (target - _log_softmax(scores, mask))).masked_fill(~mask, 0).sum(dim=-1)


@torch.enable_grad()
def _descend(vectors: Tensor, passages: Tensor, fit: _Objective, settings: FeedbackSettings) -> Tensor:
    """(Q, D). Adam works coordinate by coordinate, so the sum of the losses descends for each query by itself."""
    moving = vectors.clone().requires_grad_()
    optimizer = torch.optim.Adam([moving], lr=settings.learning_rate)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        fit(_scores(moving, passages)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            moving.copy_(_within(moving, vectors, settings.min_cosine))
    return moving.detach()


def _rocchio(vectors: Tensor, passages: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """(Q, D): the query, plus the mean of the first passages, less that of the others (Rocchio 1971)."""
    order = teacher.masked_fill(~mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    first = (mask.sum(dim=-1, keepdim=True) // 2).clamp(max=_ROCCHIO_RELEVANT)
    relevant = mask & (order.argsort(dim=-1) < first)
    keep, towards, away = _ROCCHIO_WEIGHTS
    return keep * vectors + towards * _mean(passages, relevant) - away * _mean(passages, mask & ~relevant)


def _within(moved: Tensor, vectors: Tensor, min_cosine: float) -> Tensor:
    """(Q, D): `moved`, turned back to the rim of the cone around `vectors` where it left it; its length stays."""
    along = (moved * vectors).sum(dim=-1, keepdim=True)
    length = moved.norm(dim=-1, keepdim=True)
    aside = functional.normalize(moved - along * vectors, dim=-1)
    rim = min_cosine * vectors + (1 - min_cosine**2) ** 0.5 * aside
    return torch.where(along >= min_cosine * length, moved, length * rim)


def _scores(vectors: Tensor, passages: Tensor) -> Tensor:
    """(Q, k) inner products."""
    return torch.einsum("qd,qkd->qk", vectors, passages)


def _range(values: Tensor, mask: Tensor) -> Tensor:
    """(Q,): largest less smallest value where `mask` is True; 0 where none is."""
    largest = values.masked_fill(~mask, -torch.inf).amax(dim=-1)
    return (largest - values.masked_fill(~mask, torch.inf).amin(dim=-1)).clamp(min=0)


def _mean(passages: Tensor, chosen: Tensor) -> Tensor:
    """(Q, D): the mean of the chosen passages; 0 where none is."""
    chosen = chosen.to(passages.dtype)
    return torch.einsum("qk,qkd->qd", chosen, passages) / chosen.sum(dim=-1, keepdim=True).clamp(min=1)


def _log_softmax(values: Tensor, mask: Tensor) -> Tensor:
    """Over the last axis where `mask` is True."""
    return values.masked_fill(~mask, torch.finfo(values.dtype).min).log_softmax(dim=-1)
