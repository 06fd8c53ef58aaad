"""Ranking losses for training, by name, and the cross entropy of a language model.

A ranking loss takes `scores` (B, N), `relevance` (B, N) and `mask` (B, N), which is False at the padding of lists
shorter than N. It returns a scalar: the mean over the lists that contribute, or a zero with a graph if there are none.
A list contributes if it has a pair of unequal relevance (pairwise losses) or two passages (all other losses). The
batches of a step are weighted by the number of lists that contribute.
Relevance is any number that grows with usefulness: a grade, a teacher's score, or minus the rank. It is a constant: no
gradient flows into it. Passages of equal relevance are tied. In formulas s is a score, y a relevance, i and j passages.

All losses compute in float32, or in float64 for float64 scores, so that bfloat16 scores are not rounded again.

The code of FIRST (github.com/gangiswag/llm-reranker at 08f5b6c) has no `relevance`: its targets are the model's own
scores, sorted and assigned to the passages in the teacher's order. The targets have two drawbacks: two equal bfloat16
scores are a tie, so that their pair is lost whatever the teacher says; and in ListNet and LambdaRank they are not
detached, so that the model can lower the loss by changing its targets. `lambdarank-first` and `listnet-first` are these
two losses as they were published; `lambdarank` and `listnet` read the teacher's relevance instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rerank.errors import ConfigError
from rerank.retrieval.losses import kl_divergence, masked_log_softmax, masked_softmax, pair_losses, preferred_pairs
from rerank.retrieval.losses import weighted_ranknet as weighted_ranknet_per_list
from rerank_training.trainer.ndcg import dcg
from rerank_training.trainer.processes import mean_of_all_processes

#: The smallest probability in the code of FIRST.
_FIRST_EPSILON = 1e-10
#: The label of a token without a loss, as in torch and transformers.
IGNORE_INDEX = -100


@dataclass(frozen=True)
class RankLoss:
    """A ranking loss.

    Attributes:
        per_list: (scores, relevance, mask) → (B,) losses.
        contributes: (relevance, mask) → (B,) bool, the lists that have a loss.
    """

    per_list: Callable[[Tensor, Tensor, Tensor], Tensor]
    contributes: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
        """The mean over the lists that contribute; 0 if there is none."""
        losses, contributes = self.per_list(scores, relevance, mask), self.contributes(relevance, mask)
        return losses.masked_fill(~contributes, 0).sum() / contributes.sum().clamp(min=1)

    def count(self, relevance: Tensor, mask: Tensor) -> Tensor:
        """The number of lists that contribute, a scalar."""
        return self.contributes(relevance, mask).sum()


def _loss_over_lists(
    contributes: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Callable[[Tensor, Tensor, Tensor], Tensor]], RankLoss]:
    """Decorates a function of the losses of lists: it becomes a RankLoss over the lists that contribute."""
    return lambda per_list: RankLoss(per_list, contributes)


def _with_two_passages(relevance: Tensor, mask: Tensor) -> Tensor:
    return mask.sum(dim=-1) >= 2


def _with_pair(relevance: Tensor, mask: Tensor) -> Tensor:
    return preferred_pairs(relevance, mask).any(dim=2).any(dim=1)


def _with_relevant_passage(relevance: Tensor, mask: Tensor) -> Tensor:
    return _with_two_passages(relevance, mask) & ((relevance > 0) & mask).any(dim=1)


@_loss_over_lists(_with_pair)
def ranknet(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Mean of log(1 + exp(s_j - s_i)) over the pairs with y_i > y_j (Burges et al., ICML 2005)."""
    scores, relevance = _checked(scores, relevance, mask)
    return _mean_over_pairs(pair_losses(scores), preferred_pairs(relevance, mask))


@_loss_over_lists(_with_pair)
def weighted_ranknet(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """RankNet, each pair weighted by 1 / (r_i + r_j), the 1-based ranks of the teacher; see `rerank.retrieval.losses`.

    Tied passages share their average rank; the code of FIRST sorts them in an arbitrary order.
    """
    scores, relevance = _checked(scores, relevance, mask)
    return weighted_ranknet_per_list(relevance, mask)(scores)


@_loss_over_lists(_with_pair)
def lambdarank(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """FIRST's "lambda": NDCG-Loss2 of LambdaLoss (Wang et al., CIKM 2018), in bits, mean over pairs.

    A pair's log2(1 + exp(s_j - s_i)) is weighted by |G_i - G_j| |1/log2(1 + d) - 1/log2(2 + d)|, where d is the
    distance of the two in the order by score and G = (2^y - 1) / maxDCG; a negative y has the gain of 0. LambdaRank as
    defined by Burges weights by the change of NDCG when the two are swapped, |G_i - G_j| |1/log2(1 + p_i) -
    1/log2(1 + p_j)| with ranks p, sums over pairs and takes the natural logarithm. The code of FIRST clamps
    probabilities at 1e-10, which removes the gradient of the worst pairs; this one does not. Equal scores keep the
    order of the passages.
    """
    scores, relevance = _checked(scores, relevance, mask)
    weights = _lambda_weights(scores, _ndcg_gains(relevance), mask)
    return _mean_over_pairs(weights * pair_losses(scores) / math.log(2), preferred_pairs(relevance, mask))


@_loss_over_lists(_with_two_passages)
def listnet(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy of softmax(s) under softmax(y), the top-one probabilities (Cao et al., ICML 2007).

    Tied passages get equal target probabilities. The code of FIRST adds 1e-10 to the probabilities, which limits a term
    to 23 nats.
    """
    scores, relevance = _checked(scores, relevance, mask)
    return -(masked_softmax(relevance, mask) * masked_log_softmax(scores, mask)).sum(dim=-1)


@_loss_over_lists(_with_relevant_passage)
def softmax(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy of softmax(s) under 2^y - 1, divided by its sum (Bruch et al., ICTIR 2019).

    A list without a positive y has no such target, and contributes nothing.
    """
    scores, relevance = _checked(scores, relevance, mask)
    gains = _ndcg_gains(relevance)
    total = gains.sum(dim=-1, keepdim=True)
    return -(gains / total.clamp(min=torch.finfo(gains.dtype).tiny) * masked_log_softmax(scores, mask)).sum(dim=-1)


@_loss_over_lists(_with_two_passages)
def lambdarank_first(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """`lambdarank` as FIRST trains it: towards the model's own sorted scores; the gradient flows through them, too.

    A probability, and a probability to the power of its weight, is at least 1e-10. Negative targets have no gain.
    """
    scores, relevance = _checked(scores, relevance, mask)
    targets = _own_targets(scores, relevance, mask)
    weights = _lambda_weights(scores, _ndcg_gains(targets), mask)
    smallest = math.log(_FIRST_EPSILON)
    log_probabilities = (weights * (-pair_losses(scores)).clamp(min=smallest)).clamp(min=smallest)
    return _mean_over_pairs(-log_probabilities / math.log(2), preferred_pairs(targets.detach(), mask))


@_loss_over_lists(_with_two_passages)
def listnet_first(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """`listnet` as FIRST trains it: towards the model's own sorted scores; the gradient flows through them, too."""
    scores, relevance = _checked(scores, relevance, mask)
    targets = masked_softmax(_own_targets(scores, relevance, mask), mask)
    return -(targets * torch.log(masked_softmax(scores, mask) + _FIRST_EPSILON)).sum(dim=-1)


@_loss_over_lists(_with_two_passages)
def listmle(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """-log P(the teacher's order) when passages are drawn by softmax without replacement (Xia et al., ICML 2008).

    The sum over ranks k of log(sum over m >= k of exp(s_m)) - s_k, with passages numbered in the teacher's order. Tied
    passages keep their order.
    """
    return _step_losses(_same_every_step(scores), relevance, mask).sum(dim=-1)


@_loss_over_lists(_with_two_passages)
def stepwise_listmle(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """ListMLE with one row of scores per rank, divided by n: the loss of PE-Rank (arXiv 2406.14848).

    The code of PE-Rank averages over the ranks of all lists, so that long lists have more weight; here all lists have
    equal weight.

    Args:
        scores: (B, N, N); row k holds the scores of all passages, in list order, when rank k is filled. Rows past the
            length of a list are ignored.
        relevance, mask: (B, N).
    """
    return _step_losses(scores, relevance, mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


@_loss_over_lists(_with_two_passages)
def kl(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """KL(softmax(y) || softmax(s)), with the teacher's scores y; see `rerank.retrieval.losses`.

    The gradient is ListNet's. The value is smaller by the teacher's entropy, so that it is zero when scores
    and teacher differ by a constant only.
    """
    scores, relevance = _checked(scores, relevance, mask)
    return kl_divergence(relevance, mask)(scores)


@_loss_over_lists(lambda teacher, left: _with_two_passages(teacher, left[:, 0]))
def stepwise_kl(scores: Tensor, teacher: Tensor, left: Tensor) -> Tensor:
    """PE-Rank's divergence: the sum over ranks of KL(softmax(teacher) || softmax(scores)).

    As in the code of PE-Rank, the gradient flows into the teacher too.

    Args:
        scores, teacher: (B, N, N); row k holds the scores of all passages when rank k is filled.
        left: (B, N, N) bool; True for the passages that are still to be ranked.
    """
    _require_one_shape(scores, teacher, left)
    scores, teacher = _at_least_float32(scores), _at_least_float32(teacher)
    log_ratios = masked_log_softmax(teacher, left) - masked_log_softmax(scores, left)
    return (masked_softmax(teacher, left) * log_ratios).sum(dim=(1, 2))


_LOSSES = (ranknet, weighted_ranknet, lambdarank, listnet, softmax, lambdarank_first, listnet_first, listmle, kl)
#: Name on the command line → loss: the function's name with hyphens.
RANK_LOSSES: Mapping[str, RankLoss] = {loss.per_list.__name__.replace("_", "-"): loss for loss in _LOSSES}


def rank_loss_named(name: str) -> RankLoss:
    """The loss of `--rank-loss NAME`. Raises: ConfigError with all names if none has this name."""
    if name not in RANK_LOSSES:
        raise ConfigError(f"--rank-loss {name!r} is not one of {', '.join(RANK_LOSSES)}")
    return RANK_LOSSES[name]


def language_model_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in nats of the next token, over the labels other than -100; without any, a zero with a graph.

    Each of several processes returns its part of the mean over the labels of all processes, see
    `mean_of_all_processes`.

    Args:
        logits: (B, T, V), as a model returns them.
        labels: (B, T) token ids at the positions of the tokens in the input, as in transformers: `logits[:, t]` is
            compared with `labels[:, t + 1]`.
    """
    next_labels = labels[:, 1:]
    labelled = next_labels != IGNORE_INDEX
    predicted = _at_least_float32(logits[:, :-1][labelled])  # only the labelled rows, because V is large
    total = functional.cross_entropy(predicted, next_labels[labelled], reduction="sum")
    return mean_of_all_processes(total, labelled.sum())


def label_count(labels: Tensor) -> Tensor:
    """The number of labels of this process over which `language_model_loss` is a mean."""
    return (labels[:, 1:] != IGNORE_INDEX).sum()


def _checked(scores: Tensor, relevance: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and relevance in one float type, with relevance detached and both 0 at padding."""
    _require_one_shape(scores, relevance, mask)
    scores = _at_least_float32(scores)
    return scores.masked_fill(~mask, 0), relevance.detach().to(scores.dtype).masked_fill(~mask, 0)


def _require_one_shape(scores: Tensor, relevance: Tensor, mask: Tensor) -> None:
    """Raises: ValueError if the shapes differ; broadcasting would hide the mistake."""
    if not scores.shape == relevance.shape == mask.shape:
        shapes = ", ".join(str(tuple(t.shape)) for t in (scores, relevance, mask))
        raise ValueError(f"scores, relevance and mask have different shapes: {shapes}; this is a bug")


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _mean_over_pairs(losses: Tensor, pairs: Tensor) -> Tensor:
    """(B, N, N) losses → (B,) their mean over the pairs of each list; 0 for a list without pairs."""
    return losses.masked_fill(~pairs, 0).sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=1)


def _best_first(values: Tensor, mask: Tensor) -> Tensor:
    """(B, N) positions of the passages by falling value, ties in list order, padding last."""
    return values.masked_fill(~mask, -math.inf).argsort(dim=-1, descending=True, stable=True)


def _own_targets(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """(B, N) the scores, sorted and assigned to the passages in the teacher's order; 0 at padding."""
    falling = scores.gather(1, _best_first(scores.detach(), mask))
    targets = torch.zeros_like(scores).scatter(1, _best_first(relevance, mask), falling)
    return targets.masked_fill(~mask, 0)


def _lambda_weights(scores: Tensor, gains: Tensor, mask: Tensor) -> Tensor:
    """(B, N, N) weights of the pairs of NDCG-Loss2, from (B, N) gains; see `lambdarank`."""
    ranks = _best_first(scores.detach(), mask).argsort(dim=-1)
    distances = (ranks[:, :, None] - ranks[:, None, :]).abs().clamp(min=1).to(scores.dtype)
    discounts = 1 / torch.log2(1 + distances) - 1 / torch.log2(2 + distances)
    return discounts * (gains[:, :, None] - gains[:, None, :]).abs()


def _ndcg_gains(relevance: Tensor) -> Tensor:
    """(B, N): (2^y - 1) / maxDCG, both scaled by 2^-max(y) so that a large y stays finite. Padding must be 0."""
    grades = relevance.clamp(min=0)
    largest = grades.sort(dim=-1, descending=True).values[:, :1]
    gains = torch.exp2(grades - largest) - torch.exp2(-largest)
    max_dcg = dcg(gains.sort(dim=-1, descending=True).values)[:, None]
    return gains / max_dcg.clamp(min=torch.finfo(grades.dtype).tiny)


def _same_every_step(scores: Tensor) -> Tensor:
    """(B, N) → (B, N, N): the same scores at every rank."""
    return scores[:, None, :].expand(-1, scores.shape[1], -1)


def _step_losses(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """(B, N, N) scores → (B, N): -log P(the teacher's k-th passage is drawn k-th), 0 past the end of a list."""
    _require_one_shape(scores, _same_every_step(relevance), _same_every_step(mask))
    order = _best_first(_at_least_float32(relevance), mask)
    in_order = _at_least_float32(scores).gather(2, order[:, None, :].expand_as(scores))
    left = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu() & mask.gather(1, order)[:, None]
    return -masked_log_softmax(in_order, left).diagonal(dim1=1, dim2=2)
