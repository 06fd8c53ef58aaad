"""Ranking losses of one list as Python loops over the published formulas, and random batches to compare them on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

#: (scores, relevance) of one list → loss.
SlowLoss: TypeAlias = Callable[[list[float], list[float]], float]


def one_list(scores: Sequence[float], relevance: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, relevance and mask of a batch of one list, in float64, without padding."""
    return (
        torch.tensor([scores], dtype=torch.float64),
        torch.tensor([relevance], dtype=torch.float64),
        torch.ones(1, len(scores), dtype=torch.bool),
    )


def random_batch(sizes: Sequence[int], grades: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, relevance and mask of random lists of these sizes; relevance in 0 … grades - 1, or without ties."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(sizes), max(sizes))
    scores = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    noise = torch.rand(shape, generator=generator)
    relevance = (noise.argsort(dim=-1) if grades is None else noise * grades).floor().double()
    mask = torch.arange(shape[1])[None, :] < torch.tensor(sizes)[:, None]
    return scores, relevance, mask


def lists_of(scores: Tensor, relevance: Tensor, mask: Tensor) -> list[tuple[list[float], list[float]]]:
    """Scores and relevance of each list of a batch, without its padding."""
    return [(s[m].tolist(), y[m].tolist()) for s, y, m in zip(scores, relevance, mask, strict=True)]


def slow_pairs(relevance: list[float]) -> list[tuple[int, int]]:
    positions = range(len(relevance))
    return [(i, j) for i in positions for j in positions if relevance[i] > relevance[j]]


def slow_ranks(relevance: list[float]) -> list[float]:
    ordered = sorted(relevance, reverse=True)
    ranks = {value: [rank for rank, other in enumerate(ordered, 1) if other == value] for value in relevance}
    return [sum(ranks[value]) / len(ranks[value]) for value in relevance]


def probabilities(values: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def slow_ranknet(scores: list[float], relevance: list[float]) -> float:
    pairs = slow_pairs(relevance)
    return sum(math.log(1 + math.exp(scores[j] - scores[i])) for i, j in pairs) / len(pairs)


def slow_weighted_ranknet(scores: list[float], relevance: list[float]) -> float:
    pairs, ranks = slow_pairs(relevance), slow_ranks(relevance)
    return sum(math.log(1 + math.exp(scores[j] - scores[i])) / (ranks[i] + ranks[j]) for i, j in pairs) / len(pairs)


def slow_lambdarank(scores: list[float], relevance: list[float]) -> float:
    by_score = sorted(range(len(scores)), key=lambda i: -scores[i])
    gains = [2 ** max(y, 0) - 1 for y in relevance]
    max_dcg = sum(gain / math.log2(1 + rank) for rank, gain in enumerate(sorted(gains, reverse=True), 1))
    total = 0.0
    for i, j in slow_pairs(relevance):
        d = abs(by_score.index(i) - by_score.index(j))
        weight = abs(gains[i] - gains[j]) / max_dcg * (1 / math.log2(1 + d) - 1 / math.log2(2 + d))
        total += weight * math.log2(1 + math.exp(scores[j] - scores[i]))
    return total / len(slow_pairs(relevance))


def slow_listnet(scores: list[float], relevance: list[float]) -> float:
    return -sum(p * math.log(q) for p, q in zip(probabilities(relevance), probabilities(scores), strict=True))


def slow_softmax(scores: list[float], relevance: list[float]) -> float:
    gains = [2 ** max(y, 0) - 1 for y in relevance]
    return -sum(gain / sum(gains) * math.log(q) for gain, q in zip(gains, probabilities(scores), strict=True))


def own_targets(scores: list[float], relevance: list[float]) -> list[float]:
    """The targets of FIRST's code: the scores, sorted and assigned in the teacher's order."""
    order = sorted(range(len(scores)), key=lambda i: -relevance[i])
    return [sorted(scores, reverse=True)[order.index(i)] for i in range(len(scores))]


def slow_lambdarank_first(scores: list[float], relevance: list[float]) -> float:
    return slow_lambdarank(scores, own_targets(scores, relevance))


def slow_listnet_first(scores: list[float], relevance: list[float]) -> float:
    targets = probabilities(own_targets(scores, relevance))
    return -sum(p * math.log(q + 1e-10) for p, q in zip(targets, probabilities(scores), strict=True))


def slow_steps(scores: list[float], relevance: list[float]) -> list[float]:
    order = sorted(range(len(scores)), key=lambda i: -relevance[i])
    return [-math.log(probabilities([scores[i] for i in order[k:]])[0]) for k in range(len(order))]


def slow_listmle(scores: list[float], relevance: list[float]) -> float:
    return sum(slow_steps(scores, relevance))


def slow_kl(scores: list[float], relevance: list[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(probabilities(relevance), probabilities(scores), strict=True))


_SLOW_LOSSES = (
    *(slow_ranknet, slow_weighted_ranknet, slow_lambdarank, slow_listnet, slow_softmax),
    *(slow_lambdarank_first, slow_listnet_first, slow_listmle, slow_kl),
)
#: By the names of RANK_LOSSES.
SLOW_LOSSES: dict[str, SlowLoss] = {
    loss.__name__.removeprefix("slow_").replace("_", "-"): loss for loss in _SLOW_LOSSES
}
