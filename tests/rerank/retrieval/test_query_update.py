"""Relevance feedback: against a loop over queries and pairs, and what it must never do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rerank.retrieval.query_update import FeedbackSettings, Moves, Outcome, move
from rerank.types import FeedbackMethod

Q, K, D = 5, 12, 16
GRADIENT = (FeedbackMethod.WEIGHTED_RANKNET, FeedbackMethod.KL)
METHODS = tuple(FeedbackMethod)


def unit(*shape: int, seed: int) -> Tensor:
    return functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def lists(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Vectors, passages, teacher and mask of Q lists of different lengths."""
    teacher = torch.randn(Q, K, generator=torch.Generator().manual_seed(seed + 1))
    mask = torch.arange(K) < torch.tensor([K, K - 1, 7, 3, 2])[:, None]
    return unit(Q, D, seed=seed + 2), unit(Q, K, D, seed=seed + 3), teacher, mask


def settings(method: FeedbackMethod, **given: float) -> FeedbackSettings:
    return FeedbackSettings(method, learning_rate=0.01, **given)  # type: ignore[arg-type]


def alone(row: int, given: tuple[Tensor, Tensor, Tensor, Tensor], chosen: FeedbackSettings) -> Moves:
    """The list in this row by itself, without its padding."""
    vectors, passages, teacher, mask = given
    n = int(mask[row].sum())
    part = passages[row : row + 1, :n], teacher[row : row + 1, :n], mask[row : row + 1, :n]
    return move(vectors[row : row + 1], *part, chosen)


# --- a loop, one query and one pair after the other ---


def slow_loss(method: FeedbackMethod, vector: Tensor, start: Tensor, passages: Tensor, teacher: Tensor) -> Tensor:
    n = len(teacher)
    initial = [float(start @ passage) for passage in passages]
    reach = max(initial) - min(initial)
    spread = (float(teacher.max() - teacher.min()) / 2) if method is FeedbackMethod.KL else 8.0
    scores = [vector @ passage * spread / reach for passage in passages]
    if method is FeedbackMethod.KL:
        target = teacher.softmax(dim=0)
        log_sum = torch.stack(scores).exp().sum().log()
        return sum((target[i] * (target[i].log() - scores[i] + log_sum) for i in range(n)), torch.zeros(()))
    ranks = [1 + sum(float(other) > float(own) for other in teacher) for own in teacher]
    pairs = [(i, j) for i in range(n) for j in range(n) if teacher[i] > teacher[j]]
    return sum(
        (torch.log1p((scores[j] - scores[i]).exp()) / (ranks[i] + ranks[j]) for i, j in pairs), torch.zeros(())
    ) / len(pairs)


def slow_adam(
    method: FeedbackMethod, start: Tensor, passages: Tensor, teacher: Tensor, steps: int, rate: float
) -> Tensor:
    """Kingma and Ba (2015), algorithm 1, written out."""
    vector, mean, square = start.clone(), torch.zeros(D), torch.zeros(D)
    for step in range(1, steps + 1):
        vector.requires_grad_()
        (gradient,) = torch.autograd.grad(slow_loss(method, vector, start, passages, teacher), vector)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        step_size = rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        vector = vector.detach() - step_size
    return vector / vector.norm()


@pytest.mark.parametrize("method", GRADIENT)
def test_same_as_a_loop_over_queries_and_pairs(method: FeedbackMethod) -> None:
    vectors, passages, teacher, mask = lists()
    moves = move(vectors, passages, teacher, mask, settings(method, steps=10, min_cosine=0.0))
    for row in range(Q):
        n = int(mask[row].sum())
        taught = passages[row, :n], teacher[row, :n]
        expected = slow_adam(method, vectors[row], *taught, 10, 0.01)
        torch.testing.assert_close(moves.vectors[row], expected, atol=1e-4, rtol=0)
        before = slow_loss(method, vectors[row], vectors[row], *taught)
        after = slow_loss(method, expected, vectors[row], *taught)
        assert float(moves.losses_before[row]) == pytest.approx(float(before), abs=1e-5)
        assert float(moves.losses_after[row]) == pytest.approx(float(after), abs=1e-4)


def test_rocchio_is_its_formula() -> None:
    vectors, passages, teacher, mask = lists()
    moves = move(vectors, passages, teacher, mask, settings(FeedbackMethod.ROCCHIO, min_cosine=0.0))
    order = teacher[0].argsort(descending=True)
    relevant, others = passages[0][order[:6]].mean(dim=0), passages[0][order[6:]].mean(dim=0)
    expected = functional.normalize(vectors[0] + 0.75 * relevant - 0.15 * others, dim=-1)
    assert moves.outcomes[0] is Outcome.MOVED
    torch.testing.assert_close(moves.vectors[0], expected)


# --- what every method keeps ---


@pytest.mark.parametrize("method", METHODS)
def test_alone_is_as_in_a_batch(method: FeedbackMethod) -> None:
    given = lists(seed=20)
    together = move(*given, settings(method))
    for row in range(Q):
        single = alone(row, given, settings(method))
        assert single.outcomes == together.outcomes[row : row + 1]
        torch.testing.assert_close(single.vectors[0], together.vectors[row], atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_what_stands_at_padding_is_not_read(method: FeedbackMethod) -> None:
    vectors, passages, teacher, mask = lists()
    clean = move(vectors, passages, teacher, mask, settings(method))
    passages = passages.masked_fill(~mask[:, :, None], math.nan)
    dirty = move(vectors, passages, teacher.masked_fill(~mask, math.nan), mask, settings(method))
    assert torch.equal(clean.vectors, dirty.vectors)


@pytest.mark.parametrize("method", METHODS)
def test_loss_falls_where_a_vector_moved_and_stays_where_none_did(method: FeedbackMethod) -> None:
    for seed in range(0, 100, 10):
        given = lists(seed)
        moves = move(*given, settings(method))
        for row, outcome in enumerate(moves.outcomes):
            if outcome is Outcome.MOVED:
                assert moves.losses_after[row] < moves.losses_before[row]
                assert moves.cosines[row] < 1
            else:
                assert moves.losses_after[row] == moves.losses_before[row]
                assert moves.cosines[row] == 1
                assert torch.equal(moves.vectors[row], given[0][row])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("min_cosine", [0.0, 0.5, 0.95, 0.999])
def test_vector_stays_in_the_trust_region(method: FeedbackMethod, min_cosine: float) -> None:
    chosen = FeedbackSettings(method, steps=50, learning_rate=0.1, min_cosine=min_cosine)
    moves = move(*lists(), chosen)
    assert Outcome.MOVED in moves.outcomes
    assert (moves.cosines >= min_cosine - 1e-5).all()


@pytest.mark.parametrize("method", METHODS)
def test_vectors_have_unit_length(method: FeedbackMethod) -> None:
    torch.testing.assert_close(move(*lists(), settings(method)).vectors.norm(dim=-1), torch.ones(Q))


def test_trust_region_that_is_left_is_reached() -> None:
    """The rim itself is the answer, not the original vector."""
    moves = move(*lists(), FeedbackSettings(steps=50, learning_rate=0.1, min_cosine=0.95))
    moved = [
        cosine for cosine, outcome in zip(moves.cosines.tolist(), moves.outcomes, strict=True) if not outcome.value
    ]
    assert min(moved) == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_vector_goes_towards_the_passage_that_the_teacher_raised(method: FeedbackMethod) -> None:
    vector, passages = unit(1, D, seed=1), unit(1, 2, D, seed=2)
    for best in (0, 1):
        teacher = torch.tensor([[3.0, 0.0] if best == 0 else [0.0, 3.0]])
        moves = move(vector, passages, teacher, torch.ones(1, 2, dtype=torch.bool), settings(method))
        gap = (moves.vectors - vector) @ (passages[0, best] - passages[0, 1 - best])
        assert moves.outcomes == (Outcome.MOVED,)
        assert gap > 0


def test_ranknet_reads_the_order_only() -> None:
    vectors, passages, teacher, mask = lists()
    order = teacher.argsort(dim=-1).argsort(dim=-1).float()
    same = [move(vectors, passages, given, mask, FeedbackSettings()).vectors for given in (teacher, order)]
    assert torch.equal(*same)


def test_tied_passages_pull_nowhere() -> None:
    """Of two tied groups of two, only pairs across count: swapping the tied ones changes nothing."""
    vector, passages = unit(1, D, seed=1), unit(1, 4, D, seed=2)
    mask = torch.ones(1, 4, dtype=torch.bool)
    one = move(vector, passages, torch.tensor([[2.0, 2, 1, 1]]), mask, FeedbackSettings())
    other = move(vector, passages[:, [1, 0, 3, 2]], torch.tensor([[2.0, 2, 1, 1]]), mask, FeedbackSettings())
    torch.testing.assert_close(one.vectors, other.vectors, atol=1e-5, rtol=0)


# --- where no vector is better ---


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [0, 1])
def test_nothing_or_one_passage_moves_nothing(method: FeedbackMethod, k: int) -> None:
    vectors = unit(2, D, seed=0)
    moves = move(
        vectors, unit(2, k, D, seed=1), torch.zeros(2, k), torch.ones(2, k, dtype=torch.bool), settings(method)
    )
    assert moves.outcomes == (Outcome.TOO_FEW,) * 2
    assert torch.equal(moves.vectors, vectors)
    assert moves.cosines.tolist() == [1, 1]


@pytest.mark.parametrize("method", METHODS)
def test_passages_without_vectors_move_nothing(method: FeedbackMethod) -> None:
    vectors, passages, teacher, _ = lists()
    mask = torch.zeros(Q, K, dtype=torch.bool)
    mask[1:, 0] = True
    assert move(vectors, passages, teacher, mask, settings(method)).outcomes == (Outcome.TOO_FEW,) * Q


@pytest.mark.parametrize("method", METHODS)
def test_equal_passages_move_nothing(method: FeedbackMethod) -> None:
    vectors, passages, teacher, mask = lists()
    moves = move(vectors, passages[:, :1].expand(Q, K, D), teacher, mask, settings(method))
    assert moves.outcomes == (Outcome.NO_CONTRAST,) * Q
    assert torch.equal(moves.vectors, vectors)


@pytest.mark.parametrize("method", METHODS)
def test_a_teacher_without_preference_moves_nothing(method: FeedbackMethod) -> None:
    vectors, passages, _, mask = lists()
    moves = move(vectors, passages, torch.full((Q, K), 0.25), mask, settings(method))
    assert moves.outcomes == (Outcome.NO_PREFERENCE,) * Q
    assert torch.equal(moves.vectors, vectors)


def test_a_move_that_overshoots_is_taken_back() -> None:
    """One step of 10 a coordinate goes past the better vectors for some queries."""
    taken_back = 0
    for seed in range(0, 300, 10):
        given = lists(seed)
        moves = move(*given, FeedbackSettings(FeedbackMethod.KL, steps=1, learning_rate=10.0, min_cosine=0.0))
        stayed = torch.tensor([outcome is Outcome.NO_GAIN for outcome in moves.outcomes])
        assert torch.equal(moves.vectors[stayed], given[0][stayed])
        taken_back += int(stayed.sum())
    assert taken_back > 0


@pytest.mark.parametrize("method", METHODS)
def test_hopeless_queries_do_not_disturb_the_others(method: FeedbackMethod) -> None:
    vectors, passages, teacher, mask = lists()
    clean = move(vectors, passages, teacher, mask, settings(method))
    mask[1] = False
    teacher[2] = 0
    disturbed = move(vectors, passages, teacher, mask, settings(method))
    assert disturbed.outcomes[1:3] == (Outcome.TOO_FEW, Outcome.NO_PREFERENCE)
    for row in (0, 3, 4):
        torch.testing.assert_close(disturbed.vectors[row], clean.vectors[row], atol=1e-6, rtol=0)


def test_works_where_gradients_are_off() -> None:
    """The service computes in inference mode."""
    with torch.no_grad():
        assert Outcome.MOVED in move(*lists(), FeedbackSettings()).outcomes


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_cuda_agrees_with_cpu(method: FeedbackMethod) -> None:
    given = lists()
    on_cuda = move(*(tensor.cuda() for tensor in given), settings(method))  # type: ignore[arg-type]
    on_cpu = move(*given, settings(method))
    assert on_cuda.outcomes == on_cpu.outcomes
    torch.testing.assert_close(on_cuda.vectors.cpu(), on_cpu.vectors, atol=1e-4, rtol=0)
