"""Losses against hand-worked values, slow loops, transformers, and (with --shared) the code of FIRST and PE-Rank."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from rerank_training.losses import (
    RANK_LOSSES,
    RankLoss,
    kl,
    language_model,
    listmle,
    listnet,
    ranknet,
    stepwise_listmle,
)
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss

#: Cases: inputs, and what the originals gave for them.
Originals: TypeAlias = list[dict[str, Any]]

PAIRWISE = {"ranknet", "weighted-ranknet", "lambdarank"}
each_loss = pytest.mark.parametrize("loss", [pytest.param(loss, id=name) for name, loss in RANK_LOSSES.items()])
each_pairwise = pytest.mark.parametrize("loss", [pytest.param(RANK_LOSSES[name], id=name) for name in sorted(PAIRWISE)])


def one_list(scores: Sequence[float], relevance: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of one list, in float64, without padding."""
    return (
        torch.tensor([scores], dtype=torch.float64),
        torch.tensor([relevance], dtype=torch.float64),
        torch.ones(1, len(scores), dtype=torch.bool),
    )


def batch(sizes: Sequence[int], grades: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Random lists of `sizes`, padded; relevance in 0 … grades - 1, or without ties."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(sizes), max(sizes))
    scores = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    noise = torch.rand(shape, generator=generator)
    relevance = (noise.argsort(dim=-1) if grades is None else noise * grades).floor().double()
    mask = torch.arange(shape[1])[None, :] < torch.tensor(sizes)[:, None]
    return scores, relevance, mask


# --- slow: one list as Python floats, the published formula as a loop


def slow_pairs(relevance: list[float]) -> list[tuple[int, int]]:
    places = range(len(relevance))
    return [(i, j) for i in places for j in places if relevance[i] > relevance[j]]


def slow_ranks(relevance: list[float]) -> list[float]:
    ordered = sorted(relevance, reverse=True)
    taken = {value: [place for place, other in enumerate(ordered, 1) if other == value] for value in relevance}
    return [sum(taken[value]) / len(taken[value]) for value in relevance]


def slow_softmax(values: list[float]) -> list[float]:
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
    max_dcg = sum(gain / math.log2(1 + place) for place, gain in enumerate(sorted(gains, reverse=True), 1))
    total = 0.0
    for i, j in slow_pairs(relevance):
        d = abs(by_score.index(i) - by_score.index(j))
        weight = abs(gains[i] - gains[j]) / max_dcg * (1 / math.log2(1 + d) - 1 / math.log2(2 + d))
        total += weight * math.log2(1 + math.exp(scores[j] - scores[i]))
    return total / len(slow_pairs(relevance))


def slow_listnet(scores: list[float], relevance: list[float]) -> float:
    return -sum(p * math.log(q) for p, q in zip(slow_softmax(relevance), slow_softmax(scores), strict=True))


def slow_steps(scores: list[float], relevance: list[float]) -> list[float]:
    order = sorted(range(len(scores)), key=lambda i: -relevance[i])
    return [-math.log(slow_softmax([scores[i] for i in order[k:]])[0]) for k in range(len(order))]


def slow_listmle(scores: list[float], relevance: list[float]) -> float:
    return sum(slow_steps(scores, relevance))


def slow_p_listmle(scores: list[float], relevance: list[float]) -> float:
    n = len(scores)
    weights = [2 ** (n - k) - 1 for k in range(1, n + 1)]
    weighted = [weight * loss for weight, loss in zip(weights, slow_steps(scores, relevance), strict=True)]
    return sum(weighted) / sum(weights)


def slow_approx_rank_mse(scores: list[float], relevance: list[float]) -> float:
    total = 0.0
    for i, rank in enumerate(slow_ranks(relevance)):
        others = [score for j, score in enumerate(scores) if j != i]
        approx_rank = 1 + sum(1 / (1 + math.exp(scores[i] - other)) for other in others)
        total += (rank - approx_rank) ** 2 / math.log2(1 + rank)
    return total / len(scores)


def slow_kl(scores: list[float], relevance: list[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(slow_softmax(relevance), slow_softmax(scores), strict=True))


def slow_margin_mse(scores: list[float], relevance: list[float]) -> float:
    pairs = [(i, j) for i in range(len(scores)) for j in range(i)]
    return sum(((scores[i] - scores[j]) - (relevance[i] - relevance[j])) ** 2 for i, j in pairs) / len(pairs)


SLOW: dict[str, Callable[[list[float], list[float]], float]] = {
    "ranknet": slow_ranknet,
    "weighted-ranknet": slow_weighted_ranknet,
    "lambdarank": slow_lambdarank,
    "listnet": slow_listnet,
    "listmle": slow_listmle,
    "p-listmle": slow_p_listmle,
    "approx-rank-mse": slow_approx_rank_mse,
    "kl": slow_kl,
    "margin-mse": slow_margin_mse,
}


@pytest.mark.parametrize("grades", [3, None], ids=["tied", "untied"])
@pytest.mark.parametrize("name", RANK_LOSSES)
def test_equals_the_slow_loop(name: str, grades: int | None) -> None:
    scores, relevance, mask = batch([20, 7, 3, 12], grades)
    expected = [SLOW[name](s[m].tolist(), y[m].tolist()) for s, y, m in zip(scores, relevance, mask, strict=True)]
    assert RANK_LOSSES[name](scores, relevance, mask).item() == pytest.approx(sum(expected) / len(expected), rel=1e-9)


LN2, LN3, LOG2_3 = math.log(2), math.log(3), math.log2(3)


@pytest.mark.parametrize(
    ("name", "scores", "relevance", "expected"),
    [
        ("ranknet", [0, 0], [1, 0], LN2),
        ("ranknet", [LN3, 0, 0], [1, 0, 0], math.log(4 / 3)),  # the pair of the tied is no pair
        ("weighted-ranknet", [0, 0], [1, 0], LN2 / 3),
        ("weighted-ranknet", [0, 0, 0], [2, 1, 0], LN2 * (1 / 3 + 1 / 4 + 1 / 5) / 3),
        ("weighted-ranknet", [0, 0, 0], [1, 0, 0], LN2 / 3.5),  # the tied share rank 2.5
        ("lambdarank", [0, 0], [1, 0], 1 - 1 / LOG2_3),
        ("lambdarank", [LN3, 0], [2, 1], math.log2(4 / 3) * (3 - 1) / (3 + 1 / LOG2_3) * (1 - 1 / LOG2_3)),
        ("lambdarank", [0, 0], [-1, -2], 0),  # no gain, nothing lost
        ("listnet", [0, 0], [LN3, 0], LN2),
        ("listnet", [LN3, 0], [0, 0], -(math.log(3 / 4) + math.log(1 / 4)) / 2),  # ties share the mass
        ("listmle", [0, 0, 0], [3, 2, 1], math.log(6)),
        ("p-listmle", [0, 0, 0], [3, 2, 1], (3 * LN3 + LN2) / 4),
        ("approx-rank-mse", [0, 0], [1, 0], (0.25 + 0.25 / LOG2_3) / 2),
        ("approx-rank-mse", [0, 0, 0], [5, 5, 5], 0),  # every rank is 2, and so is every approximate rank
        ("kl", [0, 0], [LN3, 0], 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2)),
        ("margin-mse", [0, 0, 0], [2, 1, 0], (1 + 1 + 4) / 3),
    ],
)  # fmt: skip
def test_equals_the_hand_worked_value(name: str, scores: list[float], relevance: list[float], expected: float) -> None:
    assert RANK_LOSSES[name](*one_list(scores, relevance)).item() == pytest.approx(expected, abs=1e-12)


# --- properties of every rank loss


@each_loss
def test_gradient_is_that_of_the_value(loss: RankLoss) -> None:
    scores, relevance, mask = batch([6, 3, 1], grades=4)
    assert torch.autograd.gradcheck(lambda s: loss(s, relevance, mask), scores.requires_grad_())


@each_loss
def test_order_of_the_teacher_costs_less_than_its_reverse(loss: RankLoss) -> None:
    relevance = [3.0, 2.0, 1.0, 0.0]
    assert loss(*one_list([3, 2, 1, 0], relevance)) < loss(*one_list([0, 1, 2, 3], relevance))


@each_loss
def test_descent_finds_the_order_of_the_teacher(loss: RankLoss) -> None:
    scores, relevance, mask = one_list([0.3, -0.2, 0.1, 0.5, 0.0], [0, 2, 1, 3, 4])
    optimizer = torch.optim.Adam([scores.requires_grad_()], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        loss(scores, relevance, mask).backward()
        optimizer.step()
    assert scores.argsort(descending=True).tolist() == relevance.argsort(descending=True).tolist()


@each_loss
def test_padding_is_not_read(loss: RankLoss) -> None:
    """Not its value, not its gradient, and not where it stands."""
    scores, relevance, mask = batch([5, 3])
    place = [5, 0, 1, 6, 2, 3, 4, 7]  # of 8, where the first 5 are the passages
    scores_padded, relevance_padded, mask_padded = (
        torch.cat([part, torch.full((2, 3), filler)], dim=1)[:, place]
        for part, filler in ((scores, math.nan), (relevance, math.inf), (mask, False))
    )
    scores.requires_grad_()
    scores_padded.requires_grad_()
    value, value_padded = loss(scores, relevance, mask), loss(scores_padded, relevance_padded, mask_padded)
    (gradient,) = torch.autograd.grad(value, scores)
    (gradient_padded,) = torch.autograd.grad(value_padded, scores_padded)
    torch.testing.assert_close(value_padded, value)
    torch.testing.assert_close(gradient_padded[:, [1, 2, 4, 5, 6]], gradient)
    assert not gradient_padded[~mask_padded].any()


@each_loss
def test_order_of_the_passages_does_not_matter(loss: RankLoss) -> None:
    """With unequal relevance for ListMLE, whose ties keep their order; unequal scores for LambdaRank."""
    scores, relevance, mask = batch([9, 5])
    shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    expected = loss(scores, relevance, mask)
    torch.testing.assert_close(loss(scores[:, shuffled], relevance[:, shuffled], mask[:, shuffled]), expected)


@each_loss
def test_adding_a_constant_to_the_scores_changes_nothing(loss: RankLoss) -> None:
    scores, relevance, mask = batch([9, 5])
    torch.testing.assert_close(loss(scores + 7, relevance, mask), loss(scores, relevance, mask))


@each_loss
def test_is_the_mean_over_the_lists_that_say_something(loss: RankLoss) -> None:
    """Not over pairs or passages of the batch, and a list of one passage does not count."""
    scores, relevance, mask = batch([8, 3, 1])
    alone = [loss(scores[i : i + 1], relevance[i : i + 1], mask[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(loss(scores, relevance, mask), (alone[0] + alone[1]) / 2)


@each_loss
@pytest.mark.parametrize(
    ("lists", "passages", "present"),
    [(0, 4, True), (2, 0, True), (2, 1, True), (2, 4, False)],
    ids=["no lists", "no passages", "one passage", "all padding"],
)
def test_nothing_to_say_gives_a_zero_with_a_gradient(loss: RankLoss, lists: int, passages: int, present: bool) -> None:
    """And no nan on the way to the zero."""
    scores = torch.randn(lists, passages, requires_grad=True)
    value = loss(scores, torch.ones(lists, passages), torch.full((lists, passages), present))
    with torch.autograd.set_detect_anomaly(True):
        value.backward()
    assert value.item() == 0
    assert scores.grad is not None
    assert not scores.grad.any()


@each_pairwise
def test_all_tied_gives_a_zero_with_a_gradient(loss: RankLoss) -> None:
    scores = torch.randn(2, 4, requires_grad=True)
    value = loss(scores, torch.ones(2, 4), torch.ones(2, 4, dtype=torch.bool))
    value.backward()
    assert value.item() == 0
    assert scores.grad is not None
    assert not scores.grad.any()


@pytest.mark.parametrize("name", ["listnet", "approx-rank-mse", "kl"])
def test_all_tied_is_best_with_equal_scores(name: str) -> None:
    scores, relevance, mask = one_list([0.5] * 4, [2.0] * 4)
    (gradient,) = torch.autograd.grad(RANK_LOSSES[name](scores.requires_grad_(), relevance, mask), scores)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


@each_loss
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_extreme_scores_stay_finite(loss: RankLoss, scale: float) -> None:
    scores = (scale * torch.tensor([[1.0, 0.5, -1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])).requires_grad_()
    relevance = torch.tensor([[3.0, 2.0, 1.0, 0.0], [1e4, 0.0, -1e4, 1.0]])
    value = loss(scores, relevance, torch.tensor([[True] * 4, [True] * 3 + [False]]))
    value.backward()
    assert value.isfinite()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@each_pairwise
def test_gradient_does_not_end_at_very_wrong_scores(loss: RankLoss) -> None:
    scores, relevance, mask = one_list([-1e4, 1e4], [1, 0])
    (gradient,) = torch.autograd.grad(loss(scores.requires_grad_(), relevance, mask), scores)
    assert gradient[0, 0] < -0.1
    assert gradient[0, 1] > 0.1


@each_loss
def test_bfloat16_scores_are_computed_in_float32(loss: RankLoss) -> None:
    scores, relevance, mask = batch([20, 7])
    rounded = scores.bfloat16().requires_grad_()
    value = loss(rounded, relevance, mask)
    value.backward()
    assert value.dtype == torch.float32
    assert rounded.grad is not None
    assert rounded.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value, loss(rounded.detach().float(), relevance, mask))


@each_loss
def test_float64_stays_float64(loss: RankLoss) -> None:
    assert loss(*batch([4])).dtype == torch.float64


@each_loss
def test_relevance_may_be_integers(loss: RankLoss) -> None:
    scores, relevance, mask = batch([6, 4], grades=4)
    torch.testing.assert_close(loss(scores, relevance.long(), mask), loss(scores, relevance, mask))


@each_loss
def test_no_gradient_flows_into_the_relevance(loss: RankLoss) -> None:
    """FIRST's targets are the model's own scores; the loss must not fall because the target moved."""
    scores, relevance, mask = batch([6, 4])
    relevance.requires_grad_()
    loss(scores.requires_grad_(), relevance, mask).backward()
    assert relevance.grad is None


@each_pairwise
def test_a_pair_of_equal_scores_is_not_lost(loss: RankLoss) -> None:
    scores = torch.tensor([[7.01, 7.0]]).bfloat16()  # equal after rounding
    assert scores[0, 0] == scores[0, 1]
    assert loss(scores, torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool)) > 0


@each_loss
def test_shapes_that_would_broadcast_are_refused(loss: RankLoss) -> None:
    scores, relevance, mask = batch([4, 4])
    with pytest.raises(ValueError, match=r"\(2, 1(, 1)?\).*bug"):
        loss(scores, relevance[:, :1], mask)
    with pytest.raises(ValueError, match=r"\(1,( 4,)? 4\).*bug"):
        loss(scores, relevance, mask[:1])


# --- properties of single losses


def test_listmle_keeps_the_order_of_tied_passages() -> None:
    scores = [0.4, 1.0, -0.3, 0.8]
    assert listmle(*one_list(scores, [1, 2, 1, 2])) == listmle(*one_list(scores, [1, 3, 0, 2]))


def test_stepwise_listmle_with_equal_steps_is_listmle_over_n() -> None:
    scores, relevance, mask = batch([7, 7], grades=3)
    steps = scores[:, None, :].expand(-1, 7, -1)
    torch.testing.assert_close(7 * stepwise_listmle(steps, relevance, mask), listmle(scores, relevance, mask))


def test_stepwise_listmle_draws_each_place_with_its_own_scores() -> None:
    steps = torch.tensor([[[LN3, 0.0, 0.0], [9.0, 0.0, LN3], [4.0, 5.0, 6.0]]], dtype=torch.float64)
    _, relevance, mask = one_list([0, 0, 0], [3, 1, 2])  # the teacher's order is 0, 2, 1
    value = stepwise_listmle(steps, relevance, mask)
    assert value.item() == pytest.approx(-(math.log(3 / 5) + math.log(3 / 4) + math.log(1)) / 3)


def test_stepwise_listmle_reads_no_step_past_the_end_of_a_list() -> None:
    steps = torch.randn(1, 3, 3, dtype=torch.float64)
    steps[:, 2], steps[:, :, 2] = math.nan, math.nan
    _, relevance, mask = one_list([0, 0, 0], [1, 2, 0])
    mask[0, 2] = False
    (gradient,) = torch.autograd.grad(stepwise_listmle(steps.requires_grad_(), relevance, mask), steps)
    assert gradient.isfinite().all()


def test_stepwise_listmle_refuses_scores_without_steps() -> None:
    scores, relevance, mask = batch([4, 4])
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(2, 4, 4\).*bug"):
        stepwise_listmle(scores, relevance, mask)


def test_kl_is_zero_where_scores_and_teacher_differ_by_a_constant() -> None:
    _, relevance, mask = batch([6, 4])
    assert kl(relevance - 3, relevance, mask, temperature=2.0).item() == pytest.approx(0, abs=1e-12)


def test_kl_of_temperature_t_is_t_squared_times_that_of_the_divided_scores() -> None:
    scores, relevance, mask = batch([6, 4])
    expected = 9 * kl(scores / 3, relevance / 3, mask)
    torch.testing.assert_close(kl(scores, relevance, mask, temperature=3.0), expected)


def test_kl_has_the_gradient_of_listnet() -> None:
    scores, relevance, mask = batch([6, 4])
    scores.requires_grad_()
    (of_kl,) = torch.autograd.grad(kl(scores, relevance, mask), scores)
    (of_listnet,) = torch.autograd.grad(listnet(scores, relevance, mask), scores)
    torch.testing.assert_close(of_kl, of_listnet)


def test_ranknet_reads_only_the_order_of_the_relevance() -> None:
    scores, relevance, mask = batch([6, 4])
    assert ranknet(scores, relevance, mask) == ranknet(scores, relevance**3 - 5, mask)


# --- language model


def tokens(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 11, generator=generator, dtype=torch.float64).to(dtype)
    return logits, torch.tensor([[4, -100, 3, 7, -100], [-100, -100, -100, 10, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_language_model_is_the_loss_of_transformers(dtype: torch.dtype) -> None:
    logits, labels = tokens(dtype)
    value = language_model(logits, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, ForCausalLMLoss(logits, labels, vocab_size=11))


def test_language_model_holds_a_logit_against_the_next_label() -> None:
    logits, labels = tokens()
    expected = -sum(logits[i, t].log_softmax(-1)[labels[i, t + 1]] for i, t in [(0, 1), (0, 2), (1, 2), (1, 3)]) / 4
    torch.testing.assert_close(language_model(logits, labels), expected)


def test_language_model_has_the_gradient_of_its_value() -> None:
    logits, labels = tokens()
    assert torch.autograd.gradcheck(lambda given: language_model(given, labels), logits.requires_grad_())


@pytest.mark.parametrize("length", [0, 1, 5])
def test_language_model_without_labels_gives_a_zero_with_a_gradient(length: int) -> None:
    logits = torch.randn(2, length, 11, requires_grad=True)
    value = language_model(logits, torch.full((2, length), -100))
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_language_model_stays_finite_at_extreme_logits() -> None:
    logits, labels = tokens(torch.float32)
    assert language_model(1e4 * logits, labels).isfinite()


# --- the originals


@pytest.fixture(scope="module")
def originals(shared: Path) -> Originals:
    """Inputs, and what the code of FIRST and PE-Rank gave for them."""
    cases: Originals = json.loads((shared.parent / "reference" / "losses.json").read_text(encoding="utf-8"))
    assert cases
    return cases


@pytest.mark.shared
@pytest.mark.parametrize("name", ["ranknet", "weighted-ranknet", "lambdarank", "listnet"])
def test_first_is_reproduced_with_its_own_targets(originals: Originals, name: str) -> None:
    for case in originals:
        scores, ranks = torch.tensor(case["scores"]), torch.tensor(case["teacher_rank"])
        targets = scores.sort(descending=True).values.gather(1, ranks)
        mask = torch.ones_like(scores, dtype=torch.bool)
        ours = [RANK_LOSSES[name](scores[[i]], targets[[i]], mask[[i]]).item() for i in range(len(scores))]
        assert ours == pytest.approx(case[f"first_{name.replace('-', '_')}"], rel=1e-5)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["ranknet", "weighted-ranknet"])
def test_first_ranknet_needs_no_targets_of_its_own(originals: Originals, name: str) -> None:
    """Minus the teacher's rank gives what FIRST's targets give."""
    for case in originals:
        scores, relevance = torch.tensor(case["scores"]), -torch.tensor(case["teacher_rank"])
        ours = RANK_LOSSES[name](scores, relevance, torch.ones_like(scores, dtype=torch.bool))
        theirs = case[f"first_{name.replace('-', '_')}"]
        assert ours.item() == pytest.approx(sum(theirs) / len(theirs), rel=1e-5)


@pytest.mark.shared
def test_pe_rank_is_stepwise_listmle(originals: Originals) -> None:
    """Its scores are passage vectors times hidden states, of which the last predicts nothing."""
    for case in originals:
        hidden, vectors, order = (
            torch.tensor(case[key]) for key in ("perank_hidden", "perank_passage_vectors", "perank_order")
        )
        steps = hidden[:, :-1] @ vectors.transpose(1, 2)
        relevance = -order.argsort(dim=-1)
        ours = stepwise_listmle(steps, relevance, torch.ones_like(relevance, dtype=torch.bool))
        assert ours.item() == pytest.approx(case["perank_listmle"], rel=1e-5)
