"""Losses: how far scores are from what a teacher says, and the cross entropy of a language model.

A rank loss takes `scores` (B, N), `relevance` (B, N) and `mask` (B, N), False where a list is shorter than N, and gives
a scalar: the mean over the lists that have something to say, or a zero that keeps the graph where none has. A list says
something when it has a pair of unequal relevance (pairwise losses) or two passages (all others). Relevance is any
number that grows with usefulness: a grade, a teacher's score, or minus the rank; it is a constant, no gradient flows
into it. Passages of equal relevance are tied. In formulas s is the score, y the relevance, i and j are passages.

All compute in float32 or, given float64, in float64, so that bfloat16 scores lose nothing but what they lost before.

FIRST (github.com/gangiswag/llm-reranker at 08f5b6c) has no `relevance`: its targets are the model's own scores, sorted
and given to the passages in the teacher's order. Give them as `relevance` to get its values. What that costs there:
two equal bfloat16 scores are a tie, and their pair is lost whatever the teacher says; and in ListNet and LambdaRank
the targets are not detached, so that the model can also lower the loss by moving them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

#: (scores, relevance, mask) → scalar
RankLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

#: The label of a token that no loss is taken of, as in transformers.
IGNORED = -100


def ranknet(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Mean of log(1 + exp(s_j - s_i)) over the pairs with y_i > y_j (Burges et al., ICML 2005)."""
    scores, relevance = _checked(scores, relevance, mask)
    return _mean_over_pairs(_pair_losses(scores), _pairs(relevance, mask))


def weighted_ranknet(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """RankNet with each pair weighted by 1 / (r_i + r_j), r the teacher's 1-based ranks (FIRST, arXiv 2406.15657).

    Divided by the number of pairs, as FIRST does, not by the sum of the weights. Tied passages share their mean rank;
    FIRST's sort orders them by chance.
    """
    scores, relevance = _checked(scores, relevance, mask)
    ranks = _teacher_ranks(relevance, mask)
    weights = 1 / (ranks[:, :, None] + ranks[:, None, :])
    return _mean_over_pairs(weights * _pair_losses(scores), _pairs(relevance, mask))


def lambdarank(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """FIRST's "lambda": NDCG-Loss2 of LambdaLoss (Wang et al., CIKM 2018), in bits, mean over pairs.

    The pair's log2(1 + exp(s_j - s_i)) is weighted by |G_i - G_j| |1/log2(1 + d) - 1/log2(2 + d)|, where d is the
    distance of the two in the order by score and G = (2^y - 1) / maxDCG; a negative y has the gain of 0. LambdaRank as
    Burges wrote it weights by the change of NDCG when the two swap places, |G_i - G_j| |1/log2(1 + p_i) -
    1/log2(1 + p_j)| with places p, sums over pairs and takes the natural logarithm. FIRST clamps probabilities at
    1e-10, where the gradient of the worst pairs ends; here it does not end. Equal scores keep the passages' order.
    """
    scores, relevance = _checked(scores, relevance, mask)
    gains = _ndcg_gains(relevance, mask)
    places = _best_first(scores.detach(), mask).argsort(dim=-1)
    distances = (places[:, :, None] - places[:, None, :]).abs().clamp(min=1).to(scores.dtype)
    discounts = 1 / torch.log2(1 + distances) - 1 / torch.log2(2 + distances)
    weights = discounts * (gains[:, :, None] - gains[:, None, :]).abs()
    return _mean_over_pairs(weights * _pair_losses(scores) / math.log(2), _pairs(relevance, mask))


def listnet(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy of softmax(s) under softmax(y), the top-one probabilities (Cao et al., ICML 2007).

    Tied passages get equal target mass. FIRST adds 1e-10 to the probabilities, which bounds a term by 23 nats.
    """
    scores, relevance = _checked(scores, relevance, mask)
    losses = -(_softmax(relevance, mask) * _log_softmax(scores, mask)).sum(dim=-1)
    return _mean_over_lists(losses, _has_two(mask))


def listmle(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """-log P(the teacher's order) when passages are drawn by softmax without replacement (Xia et al., ICML 2008).

    The sum over places k of log(sum over m >= k of exp(s_m)) - s_k, passages counted in the teacher's order. Tied
    passages keep the order in which they stand.
    """
    losses = _step_losses(_same_every_step(scores), relevance, mask)
    return _mean_over_lists(losses.sum(dim=-1), _has_two(mask))


def p_listmle(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """ListMLE with place k of n weighted by 2^(n-k) - 1 (Lan et al., UAI 2014), divided by the sum of the weights.

    Undivided, the loss would grow by 2^n. At least half of the weight is on the first place. PE-Rank's code weights by
    1/k, 1/log(1 + k), 1/2^(k-1) or (n + 1 - k)/n instead.
    """
    losses = _step_losses(_same_every_step(scores), relevance, mask)
    sizes = mask.sum(dim=-1, keepdim=True)
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device).to(losses.dtype)
    weights = (torch.exp2(-places) - torch.exp2(-sizes.to(losses.dtype))).clamp(min=0)
    total = weights.sum(dim=-1).clamp(min=torch.finfo(losses.dtype).tiny)
    return _mean_over_lists((weights * losses).sum(dim=-1) / total, _has_two(mask))


def stepwise_listmle(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """ListMLE where each place is drawn with scores of its own, divided by n: PE-Rank's loss (arXiv 2406.14848).

    PE-Rank's code takes the mean over the places of all lists, so that long lists count more; here lists count alike.

    Args:
        scores: (B, N, N); row k holds the scores of all passages, as they stand, when place k is filled. Rows past the
            length of a list are not read. `relevance` and `mask` are (B, N).
    """
    losses = _step_losses(scores, relevance, mask).sum(dim=-1)
    return _mean_over_lists(losses / mask.sum(dim=-1).clamp(min=1), _has_two(mask))


def approx_rank_mse(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Approx discounted rank MSE of Rank-DistiLLM (Schlatt et al., ECIR 2025, arXiv 2405.07920).

    Mean over the n passages of (r_i - a_i)^2 / log2(1 + r_i), where r is the teacher's 1-based rank, tied passages
    sharing their mean rank, and a_i = 1 + sum over j != i of sigmoid(s_j - s_i) is ApproxNDCG's differentiable rank
    (Qin et al., 2010) at temperature 1. FIRST's ADRMSELoss reads no teacher at all.
    """
    scores, relevance = _checked(scores, relevance, mask)
    beaten_by = torch.sigmoid(scores[:, None, :] - scores[:, :, None]).masked_fill(~mask[:, None, :], 0)
    approx_ranks = 0.5 + beaten_by.sum(dim=-1)  # the passage itself is in the sum, with sigmoid(0)
    ranks = _teacher_ranks(relevance, mask)
    errors = ((ranks - approx_ranks) ** 2 / torch.log2(1 + ranks)).masked_fill(~mask, 0)
    return _mean_over_lists(errors.sum(dim=-1) / mask.sum(dim=-1).clamp(min=1), _has_two(mask))


def kl(scores: Tensor, relevance: Tensor, mask: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(softmax(y/T) || softmax(s/T)), y the teacher's scores (Hinton et al., arXiv 1503.02531).

    T^2 keeps the size of the gradient when T changes. At T = 1 the gradient is ListNet's; the value is smaller by the
    teacher's entropy, so that it is zero when scores and teacher agree up to a constant.
    """
    scores, relevance = _checked(scores, relevance, mask)
    teacher = _log_softmax(relevance / temperature, mask)
    student = _log_softmax(scores / temperature, mask)
    divergences = (_softmax(relevance / temperature, mask) * (teacher - student)).sum(dim=-1)
    return _mean_over_lists(temperature**2 * divergences, _has_two(mask))


def margin_mse(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Mean of ((s_i - s_j) - (y_i - y_j))^2 over the pairs of a list (Hofstätter et al., arXiv 2010.02666, equation 6).

    There the pairs are given; here they are all, which makes the mean 2 n / (n - 1) times the variance of s - y.
    """
    scores, relevance = _checked(scores, relevance, mask)
    errors = scores - relevance
    sizes = mask.sum(dim=-1).to(errors.dtype)
    centred = (errors - (errors.sum(dim=-1) / sizes.clamp(min=1))[:, None]).masked_fill(~mask, 0)
    return _mean_over_lists(2 * (centred**2).sum(dim=-1) / (sizes - 1).clamp(min=1), _has_two(mask))


#: By the names that command lines use.
RANK_LOSSES: Mapping[str, RankLoss] = {
    "ranknet": ranknet,
    "weighted-ranknet": weighted_ranknet,
    "lambdarank": lambdarank,
    "listnet": listnet,
    "listmle": listmle,
    "p-listmle": p_listmle,
    "approx-rank-mse": approx_rank_mse,
    "kl": kl,
    "margin-mse": margin_mse,
}


def language_model(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of the next token over all labels but -100; zero, with the graph kept, where all are -100.

    Args:
        logits: (B, T, V), as the model gives them.
        labels: (B, T) token ids, standing where the tokens stand in the input, as in transformers: `logits[:, t]` is
            held against `labels[:, t + 1]`.
    """
    following = labels[:, 1:]
    kept = following != IGNORED
    predicted = _at_least_float32(logits[:, :-1][kept])  # only the labelled rows: V is large
    return functional.cross_entropy(predicted, following[kept], reduction="sum") / kept.sum().clamp(min=1)


def _checked(scores: Tensor, relevance: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and relevance in one float type, relevance a constant, both 0 at padding, whatever stood there."""
    _require_one_shape(scores, relevance, mask)
    scores = _at_least_float32(scores)
    return scores.masked_fill(~mask, 0), relevance.detach().to(scores.dtype).masked_fill(~mask, 0)


def _require_one_shape(scores: Tensor, relevance: Tensor, mask: Tensor) -> None:
    """Broadcasting would hide the mistake."""
    if not scores.shape == relevance.shape == mask.shape:
        shapes = ", ".join(str(tuple(t.shape)) for t in (scores, relevance, mask))
        raise ValueError(f"scores, relevance and mask do not fit: {shapes}; this is a bug")


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _pairs(relevance: Tensor, mask: Tensor) -> Tensor:
    """(B, N, N) bool: i is there, j is there, and i is the more relevant."""
    return (relevance[:, :, None] > relevance[:, None, :]) & mask[:, :, None] & mask[:, None, :]


def _pair_losses(scores: Tensor) -> Tensor:
    """(B, N, N): -log P(i before j) = log(1 + exp(s_j - s_i))."""
    return -functional.logsigmoid(scores[:, :, None] - scores[:, None, :])


def _mean_over_pairs(losses: Tensor, pairs: Tensor) -> Tensor:
    """(B, N, N) losses → mean over the pairs of each list, then over the lists with a pair."""
    counts = pairs.sum(dim=(1, 2))
    return _mean_over_lists(losses.masked_fill(~pairs, 0).sum(dim=(1, 2)) / counts.clamp(min=1), counts > 0)


def _mean_over_lists(losses: Tensor, speaks: Tensor) -> Tensor:
    """(B,) losses → their mean over the lists where `speaks` (B,) is True; 0 where none is."""
    return losses.masked_fill(~speaks, 0).sum() / speaks.sum().clamp(min=1)


def _has_two(mask: Tensor) -> Tensor:
    """(B,) bool: the list has two passages."""
    return mask.sum(dim=-1) >= 2


def _teacher_ranks(relevance: Tensor, mask: Tensor) -> Tensor:
    """(B, N) 1-based ranks by relevance; tied passages share the mean of the ranks that they take up."""
    above = ((relevance[:, None, :] > relevance[:, :, None]) & mask[:, None, :]).sum(dim=-1)
    level = ((relevance[:, None, :] == relevance[:, :, None]) & mask[:, None, :]).sum(dim=-1)
    return above + (level.to(relevance.dtype) + 1) / 2


def _best_first(values: Tensor, mask: Tensor) -> Tensor:
    """(B, N) positions of the passages by falling value, ties as they stand, padding last."""
    return values.masked_fill(~mask, -math.inf).argsort(dim=-1, descending=True, stable=True)


def _ndcg_gains(relevance: Tensor, mask: Tensor) -> Tensor:
    """(B, N): (2^y - 1) / maxDCG, with 2^max(y) cancelled so that a large y stays finite."""
    grades = relevance.clamp(min=0)
    ideal = grades.sort(dim=-1, descending=True).values
    top = ideal[:, :1]
    discounts = 1 / torch.log2(torch.arange(2, mask.shape[1] + 2, device=mask.device).to(grades.dtype))
    max_dcg = ((torch.exp2(ideal - top) - torch.exp2(-top)) * discounts).sum(dim=-1, keepdim=True)
    return (torch.exp2(grades - top) - torch.exp2(-top)) / max_dcg.clamp(min=torch.finfo(grades.dtype).tiny)


def _same_every_step(scores: Tensor) -> Tensor:
    """(B, N) → (B, N, N): one row of scores for every place."""
    return scores[:, None, :].expand(-1, scores.shape[1], -1)


def _step_losses(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """(B, N, N) scores → (B, N): -log P(place k gets the teacher's k-th, of those left), 0 past the list's end."""
    _require_one_shape(scores, _same_every_step(relevance), _same_every_step(mask))
    order = _best_first(_at_least_float32(relevance), mask)
    in_order = _at_least_float32(scores).gather(2, order[:, None, :].expand_as(scores))
    left = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu() & mask.gather(1, order)[:, None]
    return -_log_softmax(in_order, left).diagonal(dim1=1, dim2=2)


def _softmax(values: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last axis where `mask` is True; 0 elsewhere, also in a row without any True."""
    return _hidden(values, mask).softmax(dim=-1).masked_fill(~mask, 0)


def _log_softmax(values: Tensor, mask: Tensor) -> Tensor:
    """Its logarithm where `mask` is True; 0 elsewhere, so that sums over the axis may be taken."""
    return _hidden(values, mask).log_softmax(dim=-1).masked_fill(~mask, 0)


def _hidden(values: Tensor, mask: Tensor) -> Tensor:
    """Not -inf: a row of nothing else would pass through nan, which autograd's anomaly detection takes for a bug."""
    return values.masked_fill(~mask, torch.finfo(values.dtype).min)
