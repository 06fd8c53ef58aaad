"""Scores between 0 and 1: monotone in the scores of the ranking, and with the meaning that the documentation states."""

from __future__ import annotations

import math

import pytest

from rerank.ports.http.relevance import relevance_scores, unranked
from rerank.v1 import rerank_pb2 as pb

KINDS = [
    pb.SCORE_KIND_WINDOW_LOG_PROB,
    pb.SCORE_KIND_INTERPOLATED,
    pb.SCORE_KIND_WINDOW_SCORE,
    pb.SCORE_KIND_POINTWISE,
    pb.SCORE_KIND_QUERY_LOG_LIKELIHOOD,
    pb.SCORE_KIND_POINTWISE_PROBABILITY,
    pb.SCORE_KIND_RANK,
]


def response(kind: pb.ScoreKind, *scores: float) -> pb.RerankResponse:
    return pb.RerankResponse(score_kind=kind, results=[pb.RankedCandidate(score=score) for score in scores])


@pytest.mark.parametrize(
    ("kind", "scores", "expected"),
    [
        (pb.SCORE_KIND_WINDOW_LOG_PROB, [math.log(p) for p in (0.6, 0.3, 0.1)], [0.6, 0.3, 0.1]),
        (pb.SCORE_KIND_WINDOW_LOG_PROB, [1e-7, -1.0], [1.0, 0.3679]),  # rounding above 0
        (pb.SCORE_KIND_INTERPOLATED, [2.0, 0.0, -2.0], [0.8808, 0.5, 0.1192]),
        (pb.SCORE_KIND_POINTWISE_PROBABILITY, [0.75, 0.0, -1e-45], [0.75, 0.0, 0.0]),
        (pb.SCORE_KIND_POINTWISE, [math.log(3), 0.0], [0.75, 0.5]),
        (pb.SCORE_KIND_RANK, [4, 3], [1.0, 0.75]),  # the first two of four
    ],
)
def test_scores_become_what_the_documentation_says(
    kind: pb.ScoreKind, scores: list[float], expected: list[float]
) -> None:
    found = relevance_scores(response(kind, *scores), 4)
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(found) <= 1
    assert min(found) >= 0


@pytest.mark.parametrize("kind", KINDS)
def test_relevance_is_preferred_unless_a_result_lacks_it_or_the_request_asks_for_relative_scores(
    kind: pb.ScoreKind,
) -> None:
    answer = response(kind, -0.5, -1.0)
    relative = relevance_scores(answer, 2)
    answer.results[0].relevance = 0.75
    assert relevance_scores(answer, 2) == relative, "one of them has none"
    answer.results[1].relevance = 0.0
    assert relevance_scores(answer, 2) == [0.75, 0.0]
    assert relevance_scores(answer, 2, is_relative=True) == relative


@pytest.mark.parametrize("kind", KINDS)
def test_no_result_has_no_score(kind: pb.ScoreKind) -> None:
    assert relevance_scores(response(kind), 0) == []


@pytest.mark.parametrize("kind", KINDS[:4])
def test_extreme_scores_stay_between_0_and_1_and_in_order(kind: pb.ScoreKind) -> None:
    found = relevance_scores(response(kind, 1e30, 800.0, 0.0, -800.0, -1e30), 5)
    assert all(0 <= score <= 1 for score in found)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    "execution",
    [
        pb.Execution(completeness=pb.COMPLETENESS_NONE, failure="OVERLOADED"),
        pb.Execution(completeness=pb.COMPLETENESS_PARTIAL, failure="DEADLINE_EXCEEDED"),
        pb.Execution(completeness=pb.COMPLETENESS_NONE),
    ],
    ids=["fallback", "partial", "first stage"],
)
@pytest.mark.parametrize("is_relative", [False, True])
def test_place_that_no_model_gave_is_no_score(execution: pb.Execution, is_relative: bool) -> None:
    """A threshold on the score must not take them for certain."""
    answer = response(pb.SCORE_KIND_RANK, 3, 2, 1)
    answer.execution.CopyFrom(execution)
    assert relevance_scores(answer, 3, is_relative) == [0, 0, 0]
    assert unranked(answer) == [False, False, False]
    answer.results[1].relevance = 0.6  # read before the failure
    assert relevance_scores(answer, 3, is_relative) == [0, 0.6, 0]
    assert unranked(answer) == [False, None, False]


@pytest.mark.parametrize("kind", KINDS)
def test_ranking_without_a_failure_has_scores(kind: pb.ScoreKind) -> None:
    answer = response(kind, -0.5, -1.0)
    answer.execution.completeness = pb.COMPLETENESS_PARTIAL
    assert unranked(answer) == [None, None]
    assert relevance_scores(answer, 2) == relevance_scores(response(kind, -0.5, -1.0), 2)
