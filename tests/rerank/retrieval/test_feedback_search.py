"""The steps of a search with feedback, over a retriever and a ranking made of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from rerank.errors import DeadlineExceeded, Overloaded
from rerank.retrieval.feedback_search import FeedbackSearch, follow
from rerank.retrieval.query_update import FeedbackSettings, Outcome
from rerank.types import (
    Candidate,
    Completeness,
    FeedbackMethod,
    Passage,
    Query,
    RankedCandidate,
    Ranking,
    RankOptions,
    ScoreKind,
    Trace,
    Vector,
)

MARGIN_S = 0.5


def vector(*numbers: float) -> Vector:
    array = np.array(numbers, dtype=np.float32)
    return array / np.linalg.norm(array)


QUERY = Query("q", vector=vector(1, 0.9, 0))
A, B, C, D = (
    Candidate(Passage(doc_id, doc_id, vector(*numbers)), 0.0)
    for doc_id, numbers in {"a": (1, 0, 0), "b": (0, 1, 0), "c": (0, 1, 1), "d": (0, 0, 1)}.items()
)
TRACE = Trace("m", "number", "m", "", "", "single(20)", (), 1, (), 0, Completeness.FULL, "", 0, 0, 0, 0)


def ranking(order: Sequence[Candidate], given: Sequence[Candidate], kind: ScoreKind = ScoreKind.RANK) -> Ranking:
    ranked = tuple(
        RankedCandidate(candidate, given.index(candidate), float(len(order) - rank))
        for rank, candidate in enumerate(order)
    )
    return Ranking(ranked, kind, TRACE)


@dataclass
class Steps:
    """Ranks by falling doc_id; the retriever finds `found`. What was asked is kept."""

    found: tuple[Candidate, ...] = (B, C, D)
    fails: Exception | None = None
    lists: list[list[str]] = field(default_factory=list)
    top_ns: list[int] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    moved: list[Query] = field(default_factory=list)

    async def rank(self, candidates: tuple[Candidate, ...], options: RankOptions, deadline: float | None) -> Ranking:
        self.lists.append([candidate.passage.doc_id for candidate in candidates])
        self.top_ns.append(options.top_n)
        self.deadlines.append(deadline)
        if self.fails and len(self.lists) == 2:
            raise self.fails
        order = sorted(candidates, key=lambda candidate: candidate.passage.doc_id, reverse=True)
        return ranking(order[: options.top_n or None], candidates)

    async def retrieve(self, query: Query, deadline: float | None) -> tuple[Query, tuple[Candidate, ...]]:
        self.moved.append(query)
        self.deadlines.append(deadline)
        return query, self.found

    def search(self, settings: FeedbackSettings | None = None) -> FeedbackSearch:
        return FeedbackSearch(settings or FeedbackSettings(), self.rank, self.retrieve, MARGIN_S)


def ids(answer: Ranking) -> list[str]:
    return [ranked.candidate.passage.doc_id for ranked in answer.ranked]


async def test_union_is_ranked_in_the_order_of_the_first_ranking_with_the_new_behind() -> None:
    steps = Steps()
    answer, report = await steps.search().run(QUERY, (A, B), RankOptions(), None)
    assert steps.lists == [["a", "b"], ["b", "a", "c", "d"]]
    assert ids(answer) == ["d", "c", "b", "a"]
    assert [ranked.position for ranked in answer.ranked] == [3, 2, 1, 0]
    assert (report.moved, report.new_passages, report.reason) == (True, 2, "")


async def test_moved_vector_turns_to_what_the_ranking_raised() -> None:
    steps = Steps()
    await steps.search().run(QUERY, (A, B), RankOptions(), None)
    (moved,) = steps.moved
    assert moved.text == QUERY.text
    assert moved.vector is not None
    assert moved.vector[1] / moved.vector[0] > 0.9


async def test_first_ranking_is_whole_and_the_second_as_asked() -> None:
    steps = Steps()
    answer, _ = await steps.search().run(QUERY, (A, B), RankOptions(top_n=1), None)
    assert steps.top_ns == [0, 1]
    assert ids(answer) == ["d"]


async def test_nothing_new_needs_no_second_ranking() -> None:
    steps = Steps(found=(B, A))
    answer, report = await steps.search().run(QUERY, (A, B), RankOptions(top_n=1), None)
    assert steps.lists == [["a", "b"]]
    assert ids(answer) == ["b"]
    assert (report.moved, report.new_passages, report.second_ranking_ms) == (True, 0, 0)


@pytest.mark.parametrize("candidates", [(), (A,)])
async def test_unmoved_vector_needs_no_second_retrieval(candidates: tuple[Candidate, ...]) -> None:
    steps = Steps()
    answer, report = await steps.search().run(QUERY, candidates, RankOptions(), None)
    assert steps.moved == []
    assert len(answer.ranked) == len(candidates)
    assert (report.moved, report.reason) == (False, Outcome.TOO_FEW.value)


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), Overloaded("full", 1.0)])
async def test_first_ranking_answers_a_request_that_allows_a_partial_answer(error: Exception) -> None:
    steps = Steps(fails=error)
    answer, report = await steps.search().run(QUERY, (A, B), RankOptions(allow_partial=True), 100.0)
    assert ids(answer) == ["b", "a"]
    assert report.moved
    assert report.new_passages == 0
    assert report.reason == f"no second ranking: {error}"
    assert steps.deadlines == [100.0, 100.0 - MARGIN_S, 100.0 - MARGIN_S]


async def test_second_ranking_that_is_late_is_an_error_otherwise() -> None:
    with pytest.raises(DeadlineExceeded, match="late"):
        await Steps(fails=DeadlineExceeded("late")).search().run(QUERY, (A, B), RankOptions(), 100.0)


async def test_kl_does_not_read_ranks_as_scores() -> None:
    _, report = await Steps().search(FeedbackSettings(FeedbackMethod.KL)).run(QUERY, (A, B), RankOptions(), None)
    assert not report.moved
    assert "ranks only" in report.reason


def test_top_k_is_all_that_teaches() -> None:
    whole = ranking((D, B, A), (A, B, D))
    two = follow(QUERY, whole, FeedbackSettings(top_k=2)).vectors
    assert np.array_equal(two, follow(QUERY, ranking((D, B), (B, D)), FeedbackSettings()).vectors)


def test_passage_without_a_vector_teaches_nothing() -> None:
    bare = Candidate(Passage("e", "e"))
    with_bare = follow(QUERY, ranking((D, bare, A), (A, bare, D)), FeedbackSettings())
    assert with_bare.outcomes == (Outcome.MOVED,)
    assert with_bare.vectors.allclose(follow(QUERY, ranking((D, A), (A, D)), FeedbackSettings()).vectors, atol=1e-5)
    assert follow(QUERY, ranking((bare, A), (A, bare)), FeedbackSettings()).outcomes == (Outcome.TOO_FEW,)
