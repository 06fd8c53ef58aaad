"""Search with relevance feedback, over a fake retriever and a fake ranker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from rerank.errors import DeadlineExceeded, ModelServerUnavailable, Overloaded, RankerFailure
from rerank.retrieval.feedback_search import FeedbackSearch, update_query
from rerank.retrieval.query_update import QueryUpdates, UpdateOutcome
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
)
from tests.traces import trace_of


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


async def test_union_is_ranked_with_the_first_ranking_before_the_new_passages() -> None:
    stages = FakeStages()
    answer, report = await stages.search().run(QUERY, (A, B), RankOptions(), math.inf)
    assert stages.lists == [["a", "b"], ["b", "a", "c", "d"]]
    assert ids(answer) == ["d", "c", "b", "a"]
    assert [ranked.position for ranked in answer.ranked] == [3, 2, 1, 0]
    assert report.reason == ""


async def test_second_ranking_is_skipped_without_new_passages() -> None:
    stages = FakeStages(found=(B, A))
    answer, report = await stages.search().run(QUERY, (A, B), RankOptions(top_n=1), math.inf)
    assert stages.lists == [["a", "b"]]
    assert ids(answer) == ["b"]
    assert report.reason == ""


@pytest.mark.parametrize("candidates", [(), (A,)])
async def test_second_retrieval_is_skipped_without_an_update(candidates: tuple[Passage, ...]) -> None:
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
async def test_first_ranking_is_the_answer_when_the_second_fails_and_the_options_allow_it(
    options: RankOptions, error: Exception
) -> None:
    stages = FakeStages(fails=error)
    answer, report = await stages.search().run(QUERY, (A, B), options, 100.0)
    assert ids(answer) == ["b", "a"]
    assert report.reason.startswith("no second ranking: ")
    assert "secret" not in report.reason
    assert stages.deadlines == [100.0, 100.0 - ANSWER_MARGIN_S, 100.0 - ANSWER_MARGIN_S]
    for others in (RankOptions(), RankOptions(allow_partial=not options.allow_partial)):
        with pytest.raises(type(error)):
            await FakeStages(fails=error).search().run(QUERY, (A, B), others, 100.0)


async def test_first_ranking_that_failed_teaches_nothing() -> None:
    stages = FakeStages()
    trace = replace(TRACE, failure=Overloaded, reason="the queue had no room")

    async def failing(candidates: tuple[Passage, ...], options: RankOptions, deadline_s: float) -> Ranking:
        return replace(ranking(candidates, candidates), trace=trace)

    search = FeedbackSearch(FeedbackSettings(), failing, stages.retrieve, on_thread)
    answer, report = await search.run(QUERY, (A, B), RankOptions(on_failure="first_stage", top_n=1), math.inf)
    assert (ids(answer), stages.queries) == (["a"], [])
    assert report.reason == "the first ranking was not completed: the queue had no room"


async def test_kl_refuses_scores_that_are_ranks() -> None:
    _, report = (
        await FakeStages().search(FeedbackSettings(FeedbackMethod.KL)).run(QUERY, (A, B), RankOptions(), math.inf)
    )
    assert "ranks only" in report.reason


def test_passage_without_a_vector_is_ignored() -> None:
    bare = Passage("e", "e")
    with_bare = update_query(QUERY, ranking((D, bare, A), (A, bare, D)), FeedbackSettings())
    without = update_query(QUERY, ranking((D, A), (A, D)), FeedbackSettings())
    assert with_bare.outcomes == (UpdateOutcome.UPDATED,)
    assert with_bare.vectors.allclose(without.vectors, atol=1e-5)
    one_left = update_query(QUERY, ranking((bare, A), (A, bare)), FeedbackSettings())
    assert one_left.outcomes == (UpdateOutcome.TOO_FEW_PASSAGES,)
