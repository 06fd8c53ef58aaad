"""Job: the final ranking and its trace, from windows with given results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.engine.job import Job, Progress, WindowResult, strictly_decreasing
from rerank.engine.strategies import Cascade, Positions, Round, Single, Sliding, Strategy
from rerank.errors import RankerFailure
from rerank.rankers.base import RankerInfo
from rerank.rankers.identity import IdentityRanker
from rerank.types import (
    Candidate,
    Completeness,
    EncodedWindow,
    Prepared,
    Query,
    Ranking,
    ScoreKind,
    Window,
    WindowRanking,
    WindowTrace,
)
from tests.fakes import numbered_passages


def progress_for(
    n: int,
    strategy: Strategy = Sliding(20, 10),  # noqa: B008  (frozen)
    top_n: int = 0,
    kind: ScoreKind = ScoreKind.WINDOW_LOG_PROB,
) -> Progress:
    candidates = tuple(Candidate(passage) for passage in numbered_passages(range(n)))
    info = RankerInfo("kind", "id", "revision", "template", 100, kind)
    return Progress(Job("name", Query("q"), candidates, strategy, top_n), info)


def result(
    scores: Sequence[float],
    tokens: int = 0,
    queue_ms: float = 0.0,
    model_ms: float = 0.0,
    truncated: tuple[int, ...] = (),
    repairs: int = 0,
) -> WindowResult:
    encoded = EncodedWindow(Window(Query("q"), ()), tokens=tokens, truncated=truncated)
    return WindowResult(encoded, WindowRanking(tuple(scores), repairs), queue_ms, model_ms)


def add_window(progress: Progress, window: Positions, window_result: WindowResult) -> None:
    """Adds a round of one window."""
    progress.add_round(Round((window,)), [window_result], progress.info)


def after_one_window(scores: Sequence[float], kind: ScoreKind = ScoreKind.WINDOW_LOG_PROB) -> Ranking:
    """The ranking of a job whose one window held all candidates and got these scores."""
    progress = progress_for(len(scores), kind=kind)
    window = result(scores)
    add_window(progress, tuple(range(len(scores))), window)
    return progress.ranking(window.ranking.permutation, 0.0)


descending = st.lists(st.floats(-1e30, 1e30), max_size=30).map(lambda scores: sorted(scores, reverse=True))


@given(descending)
def test_strictly_decreasing_decreases_strictly_in_float32_and_raises_no_score(scores: list[float]) -> None:
    lowered = strictly_decreasing(scores)
    assert len(lowered) == len(scores)
    assert all(np.float32(above) > np.float32(below) for above, below in pairwise(lowered))
    assert all(new <= old for new, old in zip(lowered, scores, strict=True))


@given(descending)
def test_strictly_decreasing_keeps_scores_that_already_are(scores: list[float]) -> None:
    distinct = list({np.float32(score): score for score in scores}.values())
    assert strictly_decreasing(distinct) == distinct


@pytest.mark.parametrize("score", [0.0, -0.0, 1.0, -2.5, 1e30, 1e-45])
def test_ties_are_broken_by_the_smallest_float32_steps(score: float) -> None:
    expected = [score]
    while len(expected) < 1000:
        expected.append(float(np.nextafter(np.float32(expected[-1]), np.float32(-np.inf))))
    assert strictly_decreasing([score] * 1000) == expected


def test_only_scores_that_are_not_below_their_predecessor_are_lowered() -> None:
    below_2, below_1 = (float(np.nextafter(np.float32(score), np.float32(-np.inf))) for score in (2.0, 1.0))
    assert strictly_decreasing([2.0, 2.0, 1.0, 3.0]) == [2.0, below_2, 1.0, below_1]


def test_no_scores_nothing_to_lower() -> None:
    assert strictly_decreasing([]) == []


def test_window_holds_the_passages_of_its_positions_in_their_order() -> None:
    passages = tuple(numbered_passages(range(5)))
    job = Job("m", Query("q"), (), Sliding(20, 10), top_n=0)
    window = job.window(Prepared(Query("q"), passages), (3, 0), Round(((3, 0),)))
    assert window == Window(Query("q"), (passages[3], passages[0]))


def test_only_a_preranker_gives_an_unordered_list_an_order() -> None:
    own, preranked = Round(((0, 1),)), Round(((0, 1),), model="other")
    for strategy, expected in ((Sliding(20, 10), False), (Cascade(20, "other", Sliding(20, 10)), True)):
        job = Job("m", Query("q"), (), strategy, top_n=0, is_ordered=False)
        prepared = Prepared(job.query, tuple(numbered_passages(range(2))))
        windows = [job.window(prepared, (0, 1), round_) for round_ in (preranked, own)]
        assert [window.is_ordered for window in windows] == [False, expected]
        assert replace(job, is_ordered=True).window(prepared, (0, 1), preranked).is_ordered


def test_scores_are_the_windows_if_one_window_held_all_candidates() -> None:
    ranking = after_one_window([-2.0, -0.5, -3.0])
    assert [(row.position, row.score) for row in ranking.ranked] == [(1, -0.5), (0, -2.0), (2, -3.0)]
    assert ranking.score_kind is ScoreKind.WINDOW_LOG_PROB


def test_equal_window_scores_are_made_distinct() -> None:
    ranking = after_one_window([-1.0, 0.0, -1.0])
    assert [row.position for row in ranking.ranked] == [1, 0, 2]
    assert [row.score for row in ranking.ranked] == [
        0.0,
        -1.0,
        float(np.nextafter(np.float32(-1.0), np.float32(-np.inf))),
    ]


def test_scores_are_ranks_if_the_ranker_returns_ranks() -> None:
    ranking = after_one_window([0.1, 0.3, 0.2], ScoreKind.RANK)
    assert [(row.position, row.score) for row in ranking.ranked] == [(1, 3.0), (2, 2.0), (0, 1.0)]
    assert ranking.score_kind is ScoreKind.RANK


@pytest.mark.parametrize(
    ("strategy", "windows_read"),
    [(Single(2), [(0, 1)]), (Sliding(2, 1), [(1, 2), (0, 1)]), (Sliding(3, 3), [])],
    ids=str,
)
def test_scores_are_ranks_if_no_single_window_held_all_candidates(
    strategy: Strategy, windows_read: list[Positions]
) -> None:
    """Scores of different windows are not comparable."""
    progress = progress_for(3, strategy)
    for window in windows_read:
        add_window(progress, window, result([-0.1, -0.2]))
    ranking = progress.ranking([2, 0, 1], 0.0)
    assert [(row.position, row.score) for row in ranking.ranked] == [(2, 3.0), (0, 2.0), (1, 1.0)]
    assert ranking.score_kind is ScoreKind.RANK


@pytest.mark.parametrize("top_n", [1, 2, 4, 5, 6])
def test_top_n_is_a_prefix_of_the_full_ranking(top_n: int) -> None:
    order = [3, 1, 4, 0, 2]
    full = progress_for(5).ranking(order, 0.0).ranked
    assert [row.position for row in full] == order
    assert progress_for(5, top_n=top_n).ranking(order, 0.0).ranked == full[:top_n]


def test_ranked_candidates_are_those_of_their_positions() -> None:
    progress = progress_for(4)
    for row in progress.ranking([2, 3, 0, 1], 0.0).ranked:
        assert row.candidate is progress.job.candidates[row.position]


@pytest.mark.parametrize("order", [[], [0], [0, 0], [1, 2], [0, 1, 2], [0, -1]])
def test_lost_or_repeated_candidates_are_a_bug(order: list[int]) -> None:
    with pytest.raises(RankerFailure, match=r"sliding\(20/10\) lost or repeated candidates: .*; this is a bug"):
        progress_for(2).ranking(order, 0.0)


@pytest.mark.parametrize(
    ("n", "windows_read", "completeness", "reason"),
    [
        (0, [], Completeness.FULL, ""),
        (3, [(0, 1, 2)], Completeness.FULL, ""),
        (3, [(1, 2), (0, 2)], Completeness.FULL, ""),
        (3, [(0, 1)], Completeness.PARTIAL, "sliding(20/10) read 2 of 3 candidates"),
        (3, [(1, 2), (2, 1)], Completeness.PARTIAL, "sliding(20/10) read 2 of 3 candidates"),
        (3, [], Completeness.PARTIAL, "sliding(20/10) read 0 of 3 candidates"),
    ],
)
def test_completeness_states_how_much_was_read(
    n: int, windows_read: list[Positions], completeness: Completeness, reason: str
) -> None:
    progress = progress_for(n)
    for window in windows_read:
        add_window(progress, window, result([0.0] * len(window)))
    trace = progress.ranking(range(n), 0.0).trace
    assert (trace.completeness, trace.reason) == (completeness, reason)


@pytest.mark.parametrize(
    ("n", "completeness", "reason"),
    [(0, Completeness.FULL, ""), (1, Completeness.NONE, "model name keeps the first-stage order")],
)
def test_ranker_that_reads_no_passages_reranks_nothing(n: int, completeness: Completeness, reason: str) -> None:
    progress = progress_for(n)
    progress.info = IdentityRanker.info
    trace = progress.ranking(range(n), 0.0).trace
    assert (trace.completeness, trace.reason) == (completeness, reason)


def test_trace_describes_windows_cost_and_model() -> None:
    progress = progress_for(3, Sliding(2, 1))
    progress.add_prepared(Prepared(Query("q"), ()), queue_ms=0.25, prepare_ms=0.5)
    add_window(progress, (1, 2), result([0.1, 0.2], tokens=7, queue_ms=1.0, model_ms=4.0))
    add_window(progress, (0, 2), result([0.4, 0.3], tokens=5, queue_ms=2.0, model_ms=8.0))
    trace = progress.ranking([0, 2, 1], 20.0).trace
    kind = progress.info.score_kind
    assert trace.windows == (
        WindowTrace((1, 2), (1, 0), 7, (0.1, 0.2), kind, 0, "name"),
        WindowTrace((0, 2), (0, 1), 5, (0.4, 0.3), kind, 1, "name"),
    )
    assert [(window.queue_ms, window.model_ms) for window in trace.windows] == [(1.0, 4.0), (2.0, 8.0)]
    assert (trace.rounds, trace.tokens, trace.truncated_doc_ids) == (2, 12, ())
    assert (trace.queue_ms, trace.prepare_ms, trace.model_ms, trace.total_ms) == (3.25, 0.5, 12.0, 20.0)
    assert (trace.model, trace.strategy) == ("name", "sliding(2/1)")
    ranker = (trace.ranker, trace.model_id, trace.model_revision, trace.template_sha256)
    assert ranker == ("kind", "id", "revision", "template")


def test_trace_sums_the_repairs_of_its_windows() -> None:
    progress = progress_for(4, Sliding(2, 2))
    repaired = [result([1.0, 0.0], repairs=repairs) for repairs in (2, 0, 3)]
    progress.add_round(Round(((0, 1), (2, 3))), repaired[:2], progress.info)
    add_window(progress, (0, 2), repaired[2])
    assert progress.ranking(range(4), 0.0).trace.repairs == 5


def test_round_takes_the_time_of_its_slowest_window() -> None:
    """Its windows wait and run concurrently."""
    progress = progress_for(4, Sliding(2, 2))
    progress.add_round(
        Round(((0, 1), (2, 3))), [result([1, 0], 5, 1.0, 4.0), result([0, 1], 5, 2.0, 9.0)], progress.info
    )
    trace = progress.ranking(range(4), 0.0).trace
    assert (trace.rounds, trace.queue_ms, trace.model_ms) == (1, 2.0, 9.0)
    assert [window.permutation for window in trace.windows] == [(0, 1), (1, 0)]


def test_preparation_of_several_models_is_summed() -> None:
    progress = progress_for(3)
    progress.add_prepared(Prepared(Query("q"), (), truncated_doc_ids=("d2", "d0")), queue_ms=0.5, prepare_ms=1.0)
    progress.add_prepared(Prepared(Query("q"), (), truncated_doc_ids=("d0", "d1")), queue_ms=0.5, prepare_ms=2.0)
    trace = progress.ranking(range(3), 0.0).trace
    assert (trace.queue_ms, trace.prepare_ms, trace.truncated_doc_ids) == (1.0, 3.0, ("d0", "d1", "d2"))


def test_truncated_passages_are_listed_once() -> None:
    """A window holds places, the trace ids in the order of the request."""
    progress = progress_for(4, Sliding(3, 2))
    add_window(progress, (1, 2, 3), result([0.1, 0.3, 0.2], truncated=(2, 0)))
    add_window(progress, (0, 2, 3), result([0.1, 0.3, 0.2], truncated=(2, 1)))
    assert progress.ranking([2, 3, 0, 1], 0.0).trace.truncated_doc_ids == ("d1", "d2", "d3")


@pytest.mark.parametrize(
    ("strategy", "windows_done", "completeness", "reason"),
    [
        (Sliding(2, 1), 0, Completeness.NONE, "the deadline came after 0 of 4 windows of sliding(2/1)"),
        (Sliding(2, 1), 3, Completeness.PARTIAL, "the deadline came after 3 of 4 windows of sliding(2/1)"),
        (
            Sliding(2, 1, True),
            0,
            Completeness.NONE,
            "the deadline came after 0 of 2 to 4 windows of sliding(2/1, e",
        ),
        (Sliding(2, 1, True), 3, Completeness.PARTIAL, "the deadline came after 3 of 3 to 4 windows of sliding(2/1, e"),
    ],
)
def test_partial_answer_states_how_many_windows_ran(
    strategy: Strategy, windows_done: int, completeness: Completeness, reason: str
) -> None:
    progress = progress_for(5, strategy)
    for start in range(windows_done):
        add_window(progress, (start, start + 1), result([0.0, 0.0]))
    trace = progress.partial_ranking(0.0).trace
    assert trace.completeness is completeness
    assert trace.reason.startswith(reason)


def test_partial_answer_is_the_order_so_far_with_ranks_as_scores() -> None:
    progress = progress_for(3, Sliding(2, 1), top_n=2)
    assert [row.position for row in progress.partial_ranking(0.0).ranked] == [0, 1], "no window has run yet"
    add_window(progress, (1, 2), result([0.0, 1.0]))
    progress.order = (0, 2, 1)
    ranking = progress.partial_ranking(0.0)
    assert [(row.position, row.score) for row in ranking.ranked] == [(0, 3.0), (2, 2.0)]
    assert ranking.score_kind is ScoreKind.RANK


def test_partial_answer_to_an_empty_list_is_empty() -> None:
    assert progress_for(0).partial_ranking(0.0).ranked == ()
