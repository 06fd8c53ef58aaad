"""Values of the ranking losses: slow loops, values by hand, and (with --shared) the code of FIRST and PE-Rank."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from rerank_training.trainer.losses import RANK_LOSSES, listmle, stepwise_listmle

from tests.slow_losses import SLOW_LOSSES, lists_of, one_list, random_batch

#: Cases: inputs and the results of the original code.
Originals: TypeAlias = list[dict[str, Any]]


@pytest.mark.parametrize("grades", [3, None], ids=["tied", "untied"])
@pytest.mark.parametrize("name", RANK_LOSSES)
def test_equals_the_slow_loop(name: str, grades: int | None) -> None:
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
def test_equals_the_value_by_hand(name: str, scores: list[float], relevance: list[float], expected: float) -> None:
    assert RANK_LOSSES[name](*one_list(scores, relevance)).item() == pytest.approx(expected, abs=1e-12)


# --- single losses


def test_stepwise_listmle_with_equal_steps_is_listmle_over_n() -> None:
    scores, relevance, mask = random_batch([7, 7], grades=3)
    steps = scores[:, None, :].expand(-1, 7, -1)
    torch.testing.assert_close(7 * stepwise_listmle(steps, relevance, mask), listmle(scores, relevance, mask))


def test_stepwise_listmle_fills_each_rank_with_its_own_scores() -> None:
    steps = torch.tensor([[[LN3, 0.0, 0.0], [9.0, 0.0, LN3], [4.0, 5.0, 6.0]]], dtype=torch.float64)
    _, relevance, mask = one_list([0, 0, 0], [3, 1, 2])  # the teacher's order is 0, 2, 1
    value = stepwise_listmle(steps, relevance, mask)
    assert value.item() == pytest.approx(-(math.log(3 / 5) + math.log(3 / 4) + math.log(1)) / 3)


def test_stepwise_listmle_ignores_steps_past_the_end_of_a_list() -> None:
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
def test_first_code_is_reproduced_with_its_targets(originals: Originals, name: str) -> None:
    for case in originals:
        scores, ranks = torch.tensor(case["scores"]), torch.tensor(case["teacher_rank"])
        targets = scores.sort(descending=True).values.gather(1, ranks)
        mask = torch.ones_like(scores, dtype=torch.bool)
        ours = [RANK_LOSSES[name](scores[[i]], targets[[i]], mask[[i]]).item() for i in range(len(scores))]
        assert ours == pytest.approx(case[f"first_{name.replace('-', '_')}"], rel=1e-5)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["ranknet", "weighted-ranknet"])
def test_first_code_is_reproduced_with_minus_the_rank(originals: Originals, name: str) -> None:
    for case in originals:
        scores, relevance = torch.tensor(case["scores"]), -torch.tensor(case["teacher_rank"])
        ours = RANK_LOSSES[name](scores, relevance, torch.ones_like(scores, dtype=torch.bool))
        theirs = case[f"first_{name.replace('-', '_')}"]
        assert ours.item() == pytest.approx(sum(theirs) / len(theirs), rel=1e-5)


@pytest.mark.shared
def test_pe_rank_code_is_stepwise_listmle(originals: Originals) -> None:
    """Its scores are inner products of passages and hidden states; the last state predicts nothing."""
    for case in originals:
        hidden, vectors, order = (
            torch.tensor(case[key]) for key in ("perank_hidden", "perank_passage_vectors", "perank_order")
        )
        steps = hidden[:, :-1] @ vectors.transpose(1, 2)
        relevance = -order.argsort(dim=-1)
        ours = stepwise_listmle(steps, relevance, torch.ones_like(relevance, dtype=torch.bool))
        assert ours.item() == pytest.approx(case["perank_listmle"], rel=1e-5)
