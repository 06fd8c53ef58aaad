"""Ranking losses: slow loops, values by hand, properties of all, and (with --shared) the code of FIRST and PE-Rank."""

import json
import math
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from rerank_training.trainer.losses import RANK_LOSSES, label_count, language_model_loss, listmle, stepwise_listmle
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss

from tests.slow_losses import SLOW_LOSSES, lists_of, one_list, random_batch

#: Cases: inputs and the results of the original code.
Originals: TypeAlias = list[dict[str, Any]]


@pytest.mark.parametrize("grades", [3, None], ids=["tied", "untied"])
@pytest.mark.parametrize("name", RANK_LOSSES)
def test_equals_the_slow_loop(name, grades):
    scores, relevance, mask = random_batch([20, 7, 3, 12], grades)
    expected = [SLOW_LOSSES[name](*values) for values in lists_of(scores, relevance, mask)]
    assert RANK_LOSSES[name](scores, relevance, mask).item() == pytest.approx(sum(expected) / len(expected), rel=1e-9)


LN2, LN3, LOG2_3 = math.log(2), math.log(3), math.log2(3)


@pytest.mark.parametrize(
    ("name", "scores", "relevance", "expected"),
    [
        ("ranknet", [0, 0], [1, 0], LN2),
        ("ranknet", [LN3, 0, 0], [1, 0, 0], math.log(4 / 3)),  # tied passages form no pair
        ("weighted-ranknet", [0, 0], [1, 0], LN2 / 3),
        ("weighted-ranknet", [0, 0, 0], [2, 1, 0], LN2 * (1 / 3 + 1 / 4 + 1 / 5) / 3),
        ("weighted-ranknet", [0, 0, 0], [1, 0, 0], LN2 / 3.5),  # tied passages share rank 2.5
        ("lambdarank", [0, 0], [1, 0], 1 - 1 / LOG2_3),
        ("lambdarank", [LN3, 0], [2, 1], math.log2(4 / 3) * (3 - 1) / (3 + 1 / LOG2_3) * (1 - 1 / LOG2_3)),
        ("lambdarank", [0, 0], [-1, -2], 0),  # no gain, no loss
        ("listnet", [0, 0], [LN3, 0], LN2),
        ("listnet", [LN3, 0], [0, 0], -(math.log(3 / 4) + math.log(1 / 4)) / 2),  # ties share the probability
        ("softmax", [LN3, 0], [1, 0], math.log(4 / 3)),
        ("softmax", [LN3, 0], [2, 1], -(3 * math.log(3 / 4) + math.log(1 / 4)) / 4),
        ("softmax", [LN3, 0], [0, -1], 0),  # nothing relevant, no loss
        ("listmle", [0, 0, 0], [3, 2, 1], math.log(6)),
        ("kl", [0, 0], [LN3, 0], 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2)),
    ],
)  # fmt: skip
def test_equals_the_value_by_hand(name, scores, relevance, expected):
    assert RANK_LOSSES[name](*one_list(scores, relevance)).item() == pytest.approx(expected, abs=1e-12)


# --- single losses


def test_stepwise_listmle_with_equal_steps_is_listmle_over_n():
    scores, relevance, mask = random_batch([7, 7], grades=3)
    steps = scores[:, None, :].expand(-1, 7, -1)
    torch.testing.assert_close(7 * stepwise_listmle(steps, relevance, mask), listmle(scores, relevance, mask))


def test_stepwise_listmle_fills_each_rank_with_its_own_scores():
    steps = torch.tensor([[[LN3, 0.0, 0.0], [9.0, 0.0, LN3], [4.0, 5.0, 6.0]]], dtype=torch.float64)
    _, relevance, mask = one_list([0, 0, 0], [3, 1, 2])  # the teacher's order is 0, 2, 1
    value = stepwise_listmle(steps, relevance, mask)
    assert value.item() == pytest.approx(-(math.log(3 / 5) + math.log(3 / 4) + math.log(1)) / 3)


def test_stepwise_listmle_ignores_steps_past_the_end_of_a_list():
    steps = torch.randn(1, 3, 3, dtype=torch.float64)
    steps[:, 2], steps[:, :, 2] = math.nan, math.nan
    _, relevance, mask = one_list([0, 0, 0], [1, 2, 0])
    mask[0, 2] = False
    (gradient,) = torch.autograd.grad(stepwise_listmle(steps.requires_grad_(), relevance, mask), steps)
    assert gradient.isfinite().all()


# --- the originals


@pytest.fixture(scope="module")
def originals(shared: Path) -> Originals:
    """Inputs, and the results of the code of FIRST and PE-Rank."""
    cases: Originals = json.loads((shared.parent / "reference" / "losses.json").read_text(encoding="utf-8"))
    assert cases
    return cases


@pytest.mark.shared
@pytest.mark.parametrize("name", ["ranknet", "weighted-ranknet", "lambdarank", "listnet"])
def test_first_code_is_reproduced_with_its_targets(originals, name):
    for case in originals:
        scores, ranks = torch.tensor(case["scores"]), torch.tensor(case["teacher_rank"])
        targets = scores.sort(descending=True).values.gather(1, ranks)
        mask = torch.ones_like(scores, dtype=torch.bool)
        ours = [RANK_LOSSES[name](scores[[i]], targets[[i]], mask[[i]]).item() for i in range(len(scores))]
        assert ours == pytest.approx(case[f"first_{name.replace('-', '_')}"], rel=1e-5)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["ranknet", "weighted-ranknet"])
def test_first_code_is_reproduced_with_minus_the_rank(originals, name):
    for case in originals:
        scores, relevance = torch.tensor(case["scores"]), -torch.tensor(case["teacher_rank"])
        ours = RANK_LOSSES[name](scores, relevance, torch.ones_like(scores, dtype=torch.bool))
        theirs = case[f"first_{name.replace('-', '_')}"]
        assert ours.item() == pytest.approx(sum(theirs) / len(theirs), rel=1e-5)


@pytest.mark.shared
def test_pe_rank_code_is_stepwise_listmle(originals):
    """Its scores are inner products of passages and hidden states; the last state predicts nothing."""
    for case in originals:
        hidden, vectors, order = (
            torch.tensor(case[key]) for key in ("perank_hidden", "perank_passage_vectors", "perank_order")
        )
        steps = hidden[:, :-1] @ vectors.transpose(1, 2)
        relevance = -order.argsort(dim=-1)
        ours = stepwise_listmle(steps, relevance, torch.ones_like(relevance, dtype=torch.bool))
        assert ours.item() == pytest.approx(case["perank_listmle"], rel=1e-5)


PAIRWISE = {"ranknet", "weighted-ranknet", "lambdarank"}
each_loss = pytest.mark.parametrize("loss", [pytest.param(loss, id=name) for name, loss in RANK_LOSSES.items()])
each_pairwise = pytest.mark.parametrize("loss", [pytest.param(RANK_LOSSES[name], id=name) for name in sorted(PAIRWISE)])


@each_loss
def test_gradient_is_that_of_the_value(loss):
    scores, relevance, mask = random_batch([6, 3, 1], grades=4)
    assert torch.autograd.gradcheck(lambda s: loss(s, relevance, mask), scores.requires_grad_())


@each_loss
def test_padding_is_not_read(loss):
    """Neither its value nor its gradient nor its position."""
    scores, relevance, mask = random_batch([5, 3])
    columns = [5, 0, 1, 6, 2, 3, 4, 7]  # the first 5 of 8 are the passages
    scores_padded, relevance_padded, mask_padded = (
        torch.cat([part, torch.full((2, 3), filler)], dim=1)[:, columns]
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


def assert_zero_with_a_gradient(value: Tensor, scores: Tensor) -> None:
    """Without nan in the graph."""
    with torch.autograd.set_detect_anomaly(True):
        value.backward()
    assert value.item() == 0
    assert not scores.grad.any()  # type: ignore[union-attr]


@each_loss
@pytest.mark.parametrize(
    ("lists", "passages", "present"),
    [(0, 4, True), (2, 0, True), (2, 1, True), (2, 4, False)],
    ids=["no lists", "no passages", "one passage", "all padding"],
)
def test_no_contributing_list_gives_a_zero_with_a_gradient(loss, lists, passages, present):
    scores = torch.randn(lists, passages, requires_grad=True)
    value = loss(scores, torch.ones(lists, passages), torch.full((lists, passages), present))
    assert_zero_with_a_gradient(value, scores)


@each_loss
def test_list_of_one_passage_does_not_count_in_the_mean(loss):
    scores, relevance, mask = random_batch([4, 1], grades=4)
    torch.testing.assert_close(loss(scores, relevance, mask), loss(scores[:1], relevance[:1], mask[:1]))


@each_loss
def test_batches_weighed_by_their_counts_have_the_loss_of_all_lists(loss):
    """Some lists have no pair, one has a single passage, and one nothing relevant."""
    scores, relevance, mask = random_batch([6, 4, 1, 3, 5], grades=3)
    relevance[1], relevance[3] = 1, 0
    whole = loss.count(relevance, mask)
    parts = [(scores[rows], relevance[rows], mask[rows]) for rows in (slice(0, 1), slice(1, 2), slice(2, 5))]
    weighed = sum(loss(*part) * loss.count(*part[1:]) / whole for part in parts)
    torch.testing.assert_close(weighed, loss(scores, relevance, mask))
    assert 1 <= whole < 5


def test_tokens_weighed_by_their_counts_have_the_loss_of_all():
    logits, labels = tokens()
    parts = [(logits[row : row + 1], labels[row : row + 1]) for row in range(2)]
    counts = [label_count(part) for _, part in parts]
    assert [int(count) for count in counts] == [2, 2]
    weighed = sum(language_model_loss(*part) * count for part, count in zip(parts, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(weighed, language_model_loss(logits, labels))


@each_pairwise
def test_all_tied_gives_a_zero_with_a_gradient(loss):
    scores = torch.randn(2, 4, requires_grad=True)
    value = loss(scores, torch.ones(2, 4), torch.ones(2, 4, dtype=torch.bool))
    assert_zero_with_a_gradient(value, scores)


@each_loss
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_extreme_scores_stay_finite(loss, scale):
    scores = (scale * torch.tensor([[1.0, 0.5, -1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])).requires_grad_()
    relevance = torch.tensor([[3.0, 2.0, 1.0, 0.0], [1e4, 0.0, -1e4, 1.0]])
    value = loss(scores, relevance, torch.tensor([[True] * 4, [True] * 3 + [False]]))
    value.backward()
    assert value.isfinite()
    assert scores.grad.isfinite().all()


@each_loss
def test_bfloat16_scores_are_computed_in_float32(loss):
    scores, relevance, mask = random_batch([20, 7])
    rounded = scores.bfloat16().requires_grad_()
    value = loss(rounded, relevance, mask)
    value.backward()
    assert value.dtype == torch.float32
    assert rounded.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value, loss(rounded.detach().float(), relevance, mask))


@each_loss
def test_no_gradient_flows_into_the_relevance(loss):
    """FIRST's targets are the model's own scores; the loss must not fall because the target changes."""
    scores, relevance, mask = random_batch([6, 4])
    relevance.requires_grad_()
    loss(scores.requires_grad_(), relevance, mask).backward()
    assert relevance.grad is None


@each_pairwise
def test_pair_of_equal_scores_has_a_loss(loss):
    scores = torch.tensor([[7.01, 7.0]]).bfloat16()  # equal after rounding
    assert scores[0, 0] == scores[0, 1]
    assert loss(scores, torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool)) > 0


@each_loss
def test_shapes_that_would_broadcast_are_refused(loss):
    scores, relevance, mask = random_batch([4, 4])
    with pytest.raises(ValueError, match=r"\(2, 1(, 1)?\).*bug"):
        loss(scores, relevance[:, :1], mask)
    with pytest.raises(ValueError, match=r"\(1,( 4,)? 4\).*bug"):
        loss(scores, relevance, mask[:1])


def tokens(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 11, generator=generator, dtype=torch.float64).to(dtype)
    return logits, torch.tensor([[4, -100, 3, 7, -100], [-100, -100, -100, 10, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_is_that_of_transformers(dtype):
    logits, labels = tokens(dtype)
    value = language_model_loss(logits, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, ForCausalLMLoss(logits, labels, vocab_size=11))


@pytest.mark.parametrize("length", [0, 1, 5])
def test_no_labels_give_a_zero_with_a_gradient(length):
    logits = torch.randn(2, length, 11, requires_grad=True)
    value = language_model_loss(logits, torch.full((2, length), -100))
    assert_zero_with_a_gradient(value, logits)
