"""Relevance feedback: updates equal a plain implementation; searches over a fake retriever and a fake ranker."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rerank.errors import DeadlineExceeded, ModelServerUnavailable, Overloaded, RankerFailure
from rerank.retrieval.feedback import FeedbackSearch, QueryUpdates, UpdateOutcome, update_queries, update_query
from rerank.types import (
    ANSWER_MARGIN_S,
    FeedbackMethod,
    FeedbackSettings,
    Passage,
    Query,
    RankedCandidate,
    Ranking,
    RankOptions,
    ScoreKind,
    Vector,
    WindowTrace,
)
from tests.traces import trace_of

#: Queries, passages of each, and the width of vectors.
Q, K, WIDTH = 5, 12, 16
GRADIENT = (FeedbackMethod.WEIGHTED_RANKNET, FeedbackMethod.WEIGHTED_RANKNET_FIRST, FeedbackMethod.KL)
#: Those of one teacher; e2rank makes no step.
METHODS = (*GRADIENT, FeedbackMethod.ROCCHIO)


def unit(*shape: int, seed: int) -> Tensor:
    return functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


class Lists(NamedTuple):
    """Vectors (Q, D) and passages (Q, k, D), teacher and mask (Q, k) of Q lists."""

    vectors: Tensor
    passages: Tensor
    teacher: Tensor
    mask: Tensor


def lists(seed: int = 0) -> Lists:
    """Random lists of different lengths."""
    teacher = torch.randn(Q, K, generator=torch.Generator().manual_seed(seed + 1))
    mask = torch.arange(K) < torch.tensor([K, K - 1, 7, 3, 2])[:, None]
    return Lists(unit(Q, WIDTH, seed=seed + 2), unit(Q, K, WIDTH, seed=seed + 3), teacher, mask)


def settings(method: FeedbackMethod, **given: float) -> FeedbackSettings:
    return FeedbackSettings(method, **{"learning_rate": 0.01, **given})  # type: ignore[arg-type]


# --- a plain implementation with loops over queries and pairs ---


def range_of(vector: Tensor, passages: Tensor) -> float:
    scores = [float(vector @ passage) for passage in passages]
    return max(scores) - min(scores)


def slow_loss(
    method: FeedbackMethod, vector: Tensor, start: Tensor, query: Tensor, passages: Tensor, teacher: Tensor
) -> Tensor:
    """The loss of `vector` in an update that began at `start`; FIRST gives an order the scores of `query`, sorted."""
    n = len(teacher)
    target_range = {
        FeedbackMethod.KL: float(teacher.max() - teacher.min()) / 2,
        FeedbackMethod.WEIGHTED_RANKNET: 8.0,
        FeedbackMethod.WEIGHTED_RANKNET_FIRST: range_of(query, passages) / 2,
    }[method]
    scores = [vector @ passage * target_range / range_of(start, passages) for passage in passages]
    if method is FeedbackMethod.KL:
        target = teacher.softmax(dim=0)
        log_sum = torch.stack(scores).exp().sum().log()
        return sum((target[i] * (target[i].log() - scores[i] + log_sum) for i in range(n)), torch.zeros(()))
    ranks = [1 + sum(float(other) > float(score) for other in teacher) for score in teacher]
    pairs = [(i, j) for i in range(n) for j in range(n) if teacher[i] > teacher[j]]
    return sum(
        (torch.log1p((scores[j] - scores[i]).exp()) / (ranks[i] + ranks[j]) for i, j in pairs), torch.zeros(())
    ) / len(pairs)


def slow_adam(
    method: FeedbackMethod, start: Tensor, query: Tensor, passages: Tensor, teacher: Tensor, steps: int, rate: float
) -> Tensor:
    """Algorithm 1 of Kingma and Ba (2015), from `start`, for a list of the query's vector; of any length."""
    vector, mean, square = start.clone(), torch.zeros(WIDTH), torch.zeros(WIDTH)
    for step in range(1, steps + 1):
        vector.requires_grad_()
        (gradient,) = torch.autograd.grad(slow_loss(method, vector, start, query, passages, teacher), vector)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        step_size = rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        vector = vector.detach() - step_size
    return vector


@pytest.mark.parametrize("method", GRADIENT)
def test_equals_loops_over_queries_and_pairs(method):
    vectors, passages, teacher, mask = lists()
    updates = update_queries(vectors, passages, teacher, mask, settings(method, steps=10, min_cosine=0.0))
    for row in range(Q):
        n = int(mask[row].sum())
        of_list = vectors[row], passages[row, :n], teacher[row, :n]
        expected = functional.normalize(slow_adam(method, vectors[row], *of_list, 10, 0.01), dim=-1)
        torch.testing.assert_close(updates.vectors[row], expected, atol=1e-4, rtol=0)


def chained(seed: int = 0, **given: float) -> tuple[Lists, Tensor, QueryUpdates]:
    """Lists, the scores of their preranker, which has none for a passage of the first list, and the chain's updates."""
    batch, preranker = lists(seed), 3 * lists(seed + 5).teacher
    preranker[0, 4] = math.nan
    return batch, preranker, update_queries(*batch, settings(FeedbackMethod.CHAIN, **given), preranker)


def test_chain_is_kl_from_the_preranker_and_then_ranknet_with_a_fifth_of_its_steps_and_rate():
    batch, preranker, updates = chained(steps=15, min_cosine=0.0, learning_rate=0.1)
    vectors, passages, teacher, mask = batch
    for row in range(Q):
        query, has_score = vectors[row], mask[row] & ~preranker[row].isnan()
        prerankers = passages[row, has_score], preranker[row, has_score]
        begun = slow_adam(FeedbackMethod.KL, query, query, *prerankers, 15, 0.1)
        assert begun.norm() != pytest.approx(1, abs=1e-3)  # RankNet goes on from the vector as it is
        of_list = query, passages[row, mask[row]], teacher[row, mask[row]]
        ended = slow_adam(FeedbackMethod.WEIGHTED_RANKNET_FIRST, begun, *of_list, 3, 0.02)
        torch.testing.assert_close(updates.vectors[row], functional.normalize(ended, dim=-1), atol=1e-5, rtol=0)


def test_chain_has_the_steps_and_rates_of_first():
    kl, ranknet = FeedbackSettings(FeedbackMethod.CHAIN).of_chain
    assert kl.descent == FeedbackSettings(FeedbackMethod.KL).descent
    assert ranknet.descent == FeedbackSettings(FeedbackMethod.WEIGHTED_RANKNET_FIRST).descent
    assert FeedbackSettings(FeedbackMethod.CHAIN, steps=3).of_chain[1].steps == 1


def test_both_updates_of_a_chain_stay_in_the_trust_region_of_the_query():
    _, _, updates = chained(steps=100, min_cosine=0.95)
    assert set(updates.outcomes) == {UpdateOutcome.UPDATED}
    assert (updates.cosines >= 0.95 - 1e-5).all()
    assert float(updates.cosines.min()) == pytest.approx(0.95, abs=1e-4)  # and would leave it


def test_chain_goes_on_without_an_update_that_has_no_preference():
    batch, preranker, both = chained()
    (vectors, passages, teacher, mask), chain = batch, settings(FeedbackMethod.CHAIN)
    one, other = chain.of_chain
    for gone in (torch.full_like(preranker, 1.0), torch.full_like(preranker, math.nan)):
        alone = update_queries(vectors, passages, teacher, mask, other)
        assert torch.equal(update_queries(*batch, chain, gone).vectors, alone.vectors)
    begun = update_queries(vectors, passages, preranker.nan_to_num(), mask & preranker.isfinite(), one)
    tied = update_queries(vectors, passages, torch.ones_like(teacher), mask, chain, preranker)
    assert torch.equal(tied.vectors, begun.vectors)
    assert not torch.equal(both.vectors, begun.vectors)
    kept = update_queries(vectors, passages, torch.ones_like(teacher), mask, chain, torch.ones_like(preranker))
    assert kept.outcomes == (UpdateOutcome.NO_PREFERENCE,) * Q
    assert torch.equal(kept.vectors, vectors)


def test_rocchio_equals_its_formula():
    vectors, passages, teacher, mask = lists()
    updates = update_queries(vectors, passages, teacher, mask, settings(FeedbackMethod.ROCCHIO, min_cosine=0.0))
    order = teacher[0].argsort(descending=True)
    relevant, others = passages[0][order[:6]].mean(dim=0), passages[0][order[6:]].mean(dim=0)
    expected = functional.normalize(vectors[0] + 0.75 * relevant - 0.15 * others, dim=-1)
    assert set(updates.outcomes) == {UpdateOutcome.UPDATED}  # it minimises no loss, and so need not lower one
    torch.testing.assert_close(updates.vectors[0], expected)


# --- properties of every method ---


@pytest.mark.parametrize("method", GRADIENT)
def test_loss_decreases_exactly_for_updated_vectors(method):
    for seed in range(0, 50, 10):
        batch = lists(seed)
        updates = update_queries(*batch, settings(method))
        vectors, passages, teacher, mask = batch
        for row, outcome in enumerate(updates.outcomes):
            if outcome is UpdateOutcome.UPDATED:
                n = int(mask[row].sum())
                of_list = vectors[row], vectors[row], passages[row, :n], teacher[row, :n]
                before = slow_loss(method, vectors[row], *of_list)
                assert slow_loss(method, updates.vectors[row], *of_list) < before
                assert updates.cosines[row] < 1
            else:
                assert updates.cosines[row] == 1
                assert torch.equal(updates.vectors[row], batch[0][row])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("min_cosine", [0.0, 0.5, 0.95, 0.999])
def test_unit_vectors_stay_in_the_trust_region_or_end_at_its_edge(method, min_cosine):
    updates = update_queries(*lists(), FeedbackSettings(method, steps=50, learning_rate=0.1, min_cosine=min_cosine))
    updated = torch.tensor([outcome is UpdateOutcome.UPDATED for outcome in updates.outcomes])
    assert updated.any()
    assert (updates.cosines >= min_cosine - 1e-5).all()
    torch.testing.assert_close(updates.vectors.norm(dim=-1), torch.ones(Q))
    if (method, min_cosine) == (FeedbackMethod.WEIGHTED_RANKNET, 0.95):  # would leave it
        assert float(updates.cosines[updated].min()) == pytest.approx(0.95, abs=1e-4)


def test_descent_along_the_edge_of_the_trust_region_ends_lower_than_one_that_returns_to_it():
    method, steps, rate, min_cosine = FeedbackMethod.WEIGHTED_RANKNET, 30, 0.02, 0.95
    vectors, passages, teacher, mask = lists()
    updates = update_queries(vectors, passages, teacher, mask, FeedbackSettings(method, K, steps, rate, min_cosine))
    ours, returned = 0.0, 0.0
    for row in range(Q):
        n, start = int(mask[row].sum()), vectors[row]
        of_list = start, start, passages[row, :n], teacher[row, :n]
        outside = functional.normalize(slow_adam(method, *of_list, steps, rate), dim=-1)
        assert outside @ start < min_cosine
        edge = functional.normalize(outside - (outside @ start) * start, dim=-1) * (1 - min_cosine**2) ** 0.5
        ours += float(slow_loss(method, updates.vectors[row], *of_list))
        returned += float(slow_loss(method, edge + min_cosine * start, *of_list))
    assert ours < 0.99 * returned


def test_ranknet_depends_on_the_order_alone_and_not_on_the_order_of_tied_passages():
    vectors, passages, teacher, mask = lists()
    order = teacher.argsort(dim=-1).argsort(dim=-1).float()
    by_score, by_order = (update_queries(vectors, passages, t, mask, FeedbackSettings()) for t in (teacher, order))
    assert torch.equal(by_score.vectors, by_order.vectors)
    vector, passages, tied = unit(1, WIDTH, seed=1), unit(1, 4, WIDTH, seed=2), torch.tensor([[2.0, 2, 1, 1]])
    one, other = (
        update_queries(vector, vectors, tied, torch.ones(1, 4, dtype=torch.bool), FeedbackSettings())
        for vectors in (passages, passages[:, [1, 0, 3, 2]])
    )
    torch.testing.assert_close(one.vectors, other.vectors, atol=1e-5, rtol=0)


# --- queries whose vector is kept ---


def shortened(k: int) -> Lists:
    """Lists of k passages."""
    vectors, passages, teacher, mask = lists()
    return Lists(vectors, passages[:, :k], teacher[:, :k], mask[:, :k])


#: No passage of the first list has a vector, and one of the others.
WITHOUT_VECTORS = (torch.arange(K) == 0) & (torch.arange(Q) > 0)[:, None]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("batch", "outcome"),
    [
        (shortened(0), UpdateOutcome.TOO_FEW_PASSAGES),
        (shortened(1), UpdateOutcome.TOO_FEW_PASSAGES),
        (lists()._replace(mask=WITHOUT_VECTORS), UpdateOutcome.TOO_FEW_PASSAGES),
        (lists()._replace(passages=lists().passages[:, :1].expand(Q, K, WIDTH)), UpdateOutcome.EQUAL_SCORES),
        (lists()._replace(teacher=torch.full((Q, K), 0.25)), UpdateOutcome.NO_PREFERENCE),
    ],
    ids=["no passage", "one passage", "no vectors", "equal passages", "tied teacher"],
)
def test_lists_without_a_preference_keep_the_vector(method, batch, outcome):
    updates = update_queries(*batch, settings(method))
    assert updates.outcomes == (outcome,) * Q
    assert torch.equal(updates.vectors, batch[0])
    assert updates.cosines.tolist() == [1] * Q


def test_update_that_increases_the_loss_is_discarded():
    """With a learning rate of 10, one step overshoots for some queries."""
    discarded = 0
    for seed in range(0, 100, 10):
        batch = lists(seed)
        updates = update_queries(*batch, settings(FeedbackMethod.KL, steps=1, learning_rate=10.0, min_cosine=0.0))
        kept = torch.tensor([outcome is UpdateOutcome.NO_GAIN for outcome in updates.outcomes])
        assert torch.equal(updates.vectors[kept], batch[0][kept])
        discarded += int(kept.sum())
    assert discarded > 0


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_cuda_agrees_with_cpu(method):
    batch = lists()
    on_cuda = update_queries(*(tensor.cuda() for tensor in batch), settings(method))  # type: ignore[arg-type]
    on_cpu = update_queries(*batch, settings(method))
    assert on_cuda.outcomes == on_cpu.outcomes
    torch.testing.assert_close(on_cuda.vectors.cpu(), on_cpu.vectors, atol=1e-4, rtol=0)


async def on_thread(update: Callable[[], QueryUpdates]) -> QueryUpdates:
    return await asyncio.to_thread(update)


def vector(*numbers: float) -> Vector:
    array = np.array(numbers, dtype=np.float32)
    return array / np.linalg.norm(array)


QUERY = Query("q", vector=vector(1, 0.9, 0))
A, B, C, D = (
    Passage(doc_id, doc_id, 0.0, vector=vector(*numbers))
    for doc_id, numbers in {"a": (1, 0, 0), "b": (0, 1, 0), "c": (0, 1, 1), "d": (0, 0, 1)}.items()
)
TRACE = trace_of()


def ranking(order: Sequence[Passage], given: Sequence[Passage], kind: ScoreKind = ScoreKind.RANK) -> Ranking:
    ranked = tuple(
        RankedCandidate(candidate, given.index(candidate), float(len(order) - rank))
        for rank, candidate in enumerate(order)
    )
    return Ranking(ranked, kind, TRACE)


@dataclass
class FakeStages:
    """Ranks by descending doc_id; the second retrieval finds `found`. Records its calls."""

    found: tuple[Passage, ...] = (B, C, D)
    fails: Exception | None = None
    lists: list[list[str]] = field(default_factory=list)
    top_ns: list[int] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)

    async def rank(self, candidates: tuple[Passage, ...], options: RankOptions, deadline_s: float) -> Ranking:
        self.lists.append([candidate.doc_id for candidate in candidates])
        self.top_ns.append(options.top_n)
        self.deadlines.append(deadline_s)
        if self.fails and len(self.lists) == 2:
            raise self.fails
        order = sorted(candidates, key=lambda candidate: candidate.doc_id, reverse=True)
        return ranking(order[: options.top_n or None], candidates)

    async def retrieve(self, query: Query, deadline_s: float) -> tuple[Query, tuple[Passage, ...]]:
        self.queries.append(query)
        self.deadlines.append(deadline_s)
        return query, self.found

    def search(self, settings: FeedbackSettings | None = None) -> FeedbackSearch:
        return FeedbackSearch(settings or FeedbackSettings(), self.rank, self.retrieve, on_thread)


def ids(answer: Ranking) -> list[str]:
    return [ranked.passage.doc_id for ranked in answer.ranked]


async def test_union_is_ranked_with_the_first_ranking_before_the_new_passages():
    stages = FakeStages()
    answer, report = await stages.search().run(QUERY, (A, B), RankOptions(), math.inf)
    assert stages.lists == [["a", "b"], ["b", "a", "c", "d"]]
    assert ids(answer) == ["d", "c", "b", "a"]
    assert [ranked.position for ranked in answer.ranked] == [3, 2, 1, 0]
    assert report.reason == ""


async def test_second_ranking_is_skipped_without_new_passages():
    stages = FakeStages(found=(B, A))
    answer, report = await stages.search().run(QUERY, (A, B), RankOptions(top_n=1), math.inf)
    assert (stages.lists, stages.top_ns) == ([["a", "b"]], [0])  # the first ranking is whole, as it teaches
    assert ids(answer) == ["b"]
    assert report.reason == ""


@pytest.mark.parametrize("candidates", [(), (A,)])
async def test_second_retrieval_is_skipped_without_an_update(candidates):
    stages = FakeStages()
    answer, report = await stages.search().run(QUERY, candidates, RankOptions(), math.inf)
    assert stages.queries == []
    assert len(answer.ranked) == len(candidates)
    assert report.reason == UpdateOutcome.TOO_FEW_PASSAGES.value


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (RankOptions(allow_partial=True), DeadlineExceeded("late")),
        (RankOptions(allow_partial=True), Overloaded("full", 1.0)),
        (RankOptions(on_failure="first_stage"), ModelServerUnavailable("dead")),
        (RankOptions(on_failure="first_stage"), RankerFailure("secret")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_first_ranking_is_the_answer_when_the_second_fails_and_the_options_allow_it(options, error):
    stages = FakeStages(fails=error)
    answer, report = await stages.search().run(QUERY, (A, B), options, 100.0)
    assert ids(answer) == ["b", "a"]
    assert report.reason.startswith("no second ranking: ")
    assert "secret" not in report.reason
    assert stages.deadlines == [100.0, 100.0 - ANSWER_MARGIN_S, 100.0 - ANSWER_MARGIN_S]
    for others in (RankOptions(), RankOptions(allow_partial=not options.allow_partial)):
        with pytest.raises(type(error)):
            await FakeStages(fails=error).search().run(QUERY, (A, B), others, 100.0)


async def test_first_ranking_that_failed_teaches_nothing():
    stages = FakeStages()
    trace = replace(TRACE, failure=Overloaded, reason="the queue had no room")

    async def failing(candidates: tuple[Passage, ...], options: RankOptions, deadline_s: float) -> Ranking:
        return replace(ranking(candidates, candidates), trace=trace)

    search = FeedbackSearch(FeedbackSettings(), failing, stages.retrieve, on_thread)
    answer, report = await search.run(QUERY, (A, B), RankOptions(on_failure="first_stage", top_n=1), math.inf)
    assert (ids(answer), stages.queries) == (["a"], [])
    assert report.reason == "the first ranking was not completed: the queue had no room"


async def test_kl_refuses_scores_that_are_ranks():
    search = FakeStages().search(FeedbackSettings(FeedbackMethod.KL))
    _, report = await search.run(QUERY, (A, B), RankOptions(), math.inf)
    assert "ranks only" in report.reason


def cascaded(ranking: Ranking, *windows: WindowTrace) -> Ranking:
    """The ranking with these windows of a preranker, and one of the model."""
    own = WindowTrace(tuple(item.position for item in ranking.ranked), (), 0, model="m")
    return replace(ranking, trace=trace_of(windows=(*windows, own)))


def read_by_preranker(*scores: float, kind: ScoreKind, first: int = 0) -> WindowTrace:
    """A window with the scores of the positions from `first` on."""
    return WindowTrace(tuple(range(first, first + len(scores))), (), 0, scores, kind, model="preranker")


def test_chain_reads_the_scores_of_the_preranker_by_position_and_probabilities_as_logits():
    query, given, order = vector(1, 0.9, 0.5), (A, B, C), (C, A, B)
    by_model = ranking(order, given)
    chain = FeedbackSettings(FeedbackMethod.CHAIN, min_cosine=0.0)
    logits = [2.0, -1.0, 0.5]
    for kind in (ScoreKind.POINTWISE, ScoreKind.POINTWISE_PROBABILITY, ScoreKind.WINDOW_SCORE):
        is_probability = kind is ScoreKind.POINTWISE_PROBABILITY
        scores = [1 / (1 + math.exp(-logit)) for logit in logits] if is_probability else logits
        updates = update_query(query, cascaded(by_model, read_by_preranker(*scores, kind=kind)), chain)
        expected = update_queries(
            torch.from_numpy(query)[None],
            torch.tensor(np.stack([passage.vector for passage in order if passage.vector is not None])[None]),
            torch.tensor([[3.0, 2.0, 1.0]]),
            torch.ones(1, 3, dtype=torch.bool),
            chain,
            torch.tensor([[logits[given.index(passage)] for passage in order]]),
        )
        assert updates.outcomes == (UpdateOutcome.UPDATED,)
        torch.testing.assert_close(updates.vectors, expected.vectors, atol=1e-4, rtol=0)


async def test_chain_refuses_a_preranker_whose_scores_are_ranks_or_of_windows_that_cannot_be_compared():
    one = read_by_preranker(3.0, 1.0, kind=ScoreKind.RANK)
    two = [read_by_preranker(1.0, kind=ScoreKind.WINDOW_LOG_PROB, first=first) for first in (0, 1)]
    for windows in ([], [one], two):
        stages = FakeStages()

        async def rank(
            candidates: tuple[Passage, ...],
            options: RankOptions,
            deadline_s: float,
            windows: Sequence[WindowTrace] = tuple(windows),
        ) -> Ranking:
            return cascaded(ranking(candidates, candidates), *windows)

        search = FeedbackSearch(FeedbackSettings(FeedbackMethod.CHAIN), rank, stages.retrieve, on_thread)
        answer, report = await search.run(QUERY, (A, B), RankOptions(top_n=1), math.inf)
        assert (ids(answer), stages.queries) == (["a"], [])
        assert "ranks only, or of windows that cannot be compared" in report.reason


def test_passage_without_a_vector_is_ignored():
    bare = Passage("e", "e")
    with_bare = update_query(vector(1, 0.9, 0), ranking((D, bare, A), (A, bare, D)), FeedbackSettings())
    without = update_query(vector(1, 0.9, 0), ranking((D, A), (A, D)), FeedbackSettings())
    assert with_bare.outcomes == (UpdateOutcome.UPDATED,)
    assert with_bare.vectors.allclose(without.vectors, atol=1e-5)
    one_left = update_query(vector(1, 0.9, 0), ranking((bare, A), (A, bare)), FeedbackSettings())
    assert one_left.outcomes == (UpdateOutcome.TOO_FEW_PASSAGES,)
