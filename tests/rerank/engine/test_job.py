"""What a request's answer says, made from windows that ran on paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.engine.job import Job, Progress, WindowResult, strictly_decreasing, window_of
from rerank.engine.strategies import Positions, Round, Single, Sliding, Strategy
from rerank.errors import RankerFailure
from rerank.rankers.base import RankerInfo, checked
from rerank.rankers.identity import IdentityRanker
from rerank.types import (
    Candidate,
    Completeness,
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
    wait_ms: float = 0.0,
    model_ms: float = 0.0,
    truncated: tuple[int, ...] = (),
) -> WindowResult:
    return WindowResult(WindowRanking(tuple(scores), truncated), tokens, wait_ms, model_ms)


def add_window(progress: Progress, window: Positions, ran: WindowResult) -> None:
    """A round of one window."""
    progress.add_round(Round((window,)), [ran], progress.info)


def after_one_window(scores: Sequence[float], kind: ScoreKind = ScoreKind.WINDOW_LOG_PROB) -> Ranking:
    """The answer when one window read all candidates and gave these scores."""
    progress = progress_for(len(scores), kind=kind)
    window = result(scores)
    add_window(progress, tuple(range(len(scores))), window)
    return progress.ranking(window.ranking.permutation, 0.0)


def windows(*sizes: int) -> list[Window]:
    return [Window(Query("q"), tuple(numbered_passages(range(size)))) for size in sizes]


def rankings(*rows: Sequence[float]) -> list[WindowRanking]:
    return [WindowRanking(tuple(row)) for row in rows]


descending = st.lists(st.floats(-1e300, 1e300), max_size=30).map(lambda scores: sorted(scores, reverse=True))


@given(descending)
def test_strictly_decreasing_decreases_strictly_and_raises_nothing(scores: list[float]) -> None:
    lowered = strictly_decreasing(scores)
    assert len(lowered) == len(scores)
    assert all(above > below for above, below in pairwise(lowered))
    assert all(new <= old for new, old in zip(lowered, scores, strict=True))


@given(descending)
def test_strictly_decreasing_keeps_scores_that_already_are(scores: list[float]) -> None:
    distinct = list(dict.fromkeys(scores))
    assert strictly_decreasing(distinct) == distinct


@pytest.mark.parametrize("score", [0.0, -0.0, 1.0, -2.5, 1e300, 5e-324])
def test_ties_are_parted_by_the_smallest_steps_there_are(score: float) -> None:
    expected = [score]
    while len(expected) < 1000:
        expected.append(math.nextafter(expected[-1], -math.inf))
    assert strictly_decreasing([score] * 1000) == expected


def test_only_what_is_not_below_the_one_before_is_lowered() -> None:
    below = math.nextafter(2.0, -math.inf)
    assert strictly_decreasing([2.0, 2.0, 1.0, 3.0]) == [2.0, below, 1.0, math.nextafter(1.0, -math.inf)]


def test_no_scores_nothing_to_lower() -> None:
    assert strictly_decreasing([]) == []


@pytest.mark.parametrize(
    ("rows", "sizes"), [([], ()), ([[]], (0,)), ([[1.0]], (1,)), ([[1.0, -1e308], [0.0, 0.0, 0.0]], (2, 3))]
)
def test_one_finite_score_a_passage_passes(rows: list[list[float]], sizes: tuple[int, ...]) -> None:
    given_rankings = rankings(*rows)
    assert checked(given_rankings, windows(*sizes)) is given_rankings


@pytest.mark.parametrize(
    ("rows", "given_sizes"),
    [
        ([], r"\[\]"),
        ([[1, 2]], r"\[2\]"),
        ([[1, 2], [1, 2]], r"\[2, 2\]"),
        ([[1, 2], [1, 2, 3, 4]], r"\[2, 4\]"),
        ([[1, 2, 3], [1, 2]], r"\[3, 2\]"),
        ([[1, 2], [1, 2, 3], []], r"\[2, 3, 0\]"),
    ],
)
def test_wrong_number_of_scores_is_a_bug_that_names_both_numbers(rows: list[list[float]], given_sizes: str) -> None:
    with pytest.raises(RankerFailure, match=rf"ranker gave {given_sizes} scores for \[2, 3\]; this is a bug"):
        checked(rankings(*rows), windows(2, 3))


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_score_that_is_no_number_is_a_bug(score: float) -> None:
    with pytest.raises(RankerFailure, match=rf"a score that is no number: .*{score}.*; this is a bug"):
        checked(rankings([0.0, 1.0], [0.0, score]), windows(2, 2))


def test_window_holds_the_passages_of_its_positions_in_their_order() -> None:
    passages = tuple(numbered_passages(range(5)))
    assert window_of(Prepared(Query("q"), passages), (3, 0)) == Window(Query("q"), (passages[3], passages[0]))


@pytest.mark.parametrize("kind", [ScoreKind.WINDOW_LOG_PROB, ScoreKind.CALIBRATED])
def test_scores_are_the_windows_when_one_window_read_all(kind: ScoreKind) -> None:
    ranking = after_one_window([-2.0, -0.5, -3.0], kind)
    assert [(row.position, row.score) for row in ranking.ranked] == [(1, -0.5), (0, -2.0), (2, -3.0)]
    assert ranking.score_kind is kind


def test_equal_window_scores_are_parted() -> None:
    ranking = after_one_window([-1.0, 0.0, -1.0])
    assert [row.position for row in ranking.ranked] == [1, 0, 2]
    assert [row.score for row in ranking.ranked] == [0.0, -1.0, math.nextafter(-1.0, -math.inf)]


def test_scores_are_ranks_when_the_ranker_knows_only_ranks() -> None:
    ranking = after_one_window([0.1, 0.3, 0.2], ScoreKind.RANK)
    assert [(row.position, row.score) for row in ranking.ranked] == [(1, 3.0), (2, 2.0), (0, 1.0)]
    assert ranking.score_kind is ScoreKind.RANK


@pytest.mark.parametrize(
    ("strategy", "windows_read"),
    [(Single(2), [(0, 1)]), (Sliding(2, 1), [(1, 2), (0, 1)]), (Sliding(3, 3), [])],
    ids=str,
)
def test_scores_are_ranks_when_no_single_window_read_all(strategy: Strategy, windows_read: list[Positions]) -> None:
    """Scores of different windows are not comparable."""
    progress = progress_for(3, strategy)
    for window in windows_read:
        add_window(progress, window, result([-0.1, -0.2]))
    ranking = progress.ranking([2, 0, 1], 0.0)
    assert [(row.position, row.score) for row in ranking.ranked] == [(2, 3.0), (0, 2.0), (1, 1.0)]
    assert ranking.score_kind is ScoreKind.RANK


@pytest.mark.parametrize("top_n", [1, 2, 4, 5, 6])
def test_top_n_is_a_prefix_of_the_whole_answer(top_n: int) -> None:
    order = [3, 1, 4, 0, 2]
    whole = progress_for(5).ranking(order, 0.0).ranked
    assert [row.position for row in whole] == order
    assert progress_for(5, top_n=top_n).ranking(order, 0.0).ranked == whole[:top_n]


def test_every_row_carries_the_candidate_of_its_position() -> None:
    progress = progress_for(4)
    for row in progress.ranking([2, 3, 0, 1], 0.0).ranked:
        assert row.candidate is progress.job.candidates[row.position]


@pytest.mark.parametrize("order", [[], [0], [0, 0], [1, 2], [0, 1, 2], [0, -1]])
def test_lost_or_doubled_candidates_are_a_bug(order: list[int]) -> None:
    with pytest.raises(RankerFailure, match=r"sliding\(20/10\) lost or doubled candidates: .*; this is a bug"):
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
def test_answer_says_how_much_was_read(
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
def test_ranker_that_reads_nothing_reranks_nothing(n: int, completeness: Completeness, reason: str) -> None:
    progress = progress_for(n)
    progress.info = IdentityRanker.info
    trace = progress.ranking(range(n), 0.0).trace
    assert (trace.completeness, trace.reason) == (completeness, reason)


def test_trace_says_what_ran() -> None:
    progress = progress_for(3, Sliding(2, 1))
    progress.add_prepared(Prepared(Query("q"), ()), wait_ms=0.25, took_ms=0.5)
    add_window(progress, (1, 2), result([0.1, 0.2], tokens=7, wait_ms=1.0, model_ms=4.0))
    add_window(progress, (0, 2), result([0.4, 0.3], tokens=5, wait_ms=2.0, model_ms=8.0))
    trace = progress.ranking([0, 2, 1], 20.0).trace
    assert trace.windows == (WindowTrace((1, 2), (1, 0), 7), WindowTrace((0, 2), (0, 1), 5))
    assert (trace.rounds, trace.tokens, trace.truncated_doc_ids) == (2, 12, ())
    assert (trace.queue_ms, trace.prepare_ms, trace.model_ms, trace.total_ms) == (3.25, 0.5, 12.0, 20.0)
    assert (trace.model, trace.strategy) == ("name", "sliding(2/1)")
    named = (trace.ranker, trace.model_id, trace.model_revision, trace.template_sha256)
    assert named == ("kind", "id", "revision", "template")


def test_trace_adds_up_the_repairs_of_its_windows() -> None:
    progress = progress_for(4, Sliding(2, 2))
    mended = [WindowResult(WindowRanking((1.0, 0.0), repairs=repairs), 0, 0.0, 0.0) for repairs in (2, 0, 3)]
    progress.add_round(Round(((0, 1), (2, 3))), mended[:2], progress.info)
    add_window(progress, (0, 2), mended[2])
    assert progress.ranking(range(4), 0.0).trace.repairs == 5


def test_round_takes_the_time_of_its_slowest_window() -> None:
    """Its windows wait and run side by side."""
    progress = progress_for(4, Sliding(2, 2))
    progress.add_round(
        Round(((0, 1), (2, 3))), [result([1, 0], 5, 1.0, 4.0), result([0, 1], 5, 2.0, 9.0)], progress.info
    )
    trace = progress.ranking(range(4), 0.0).trace
    assert (trace.rounds, trace.queue_ms, trace.model_ms) == (1, 2.0, 9.0)
    assert [window.permutation for window in trace.windows] == [(0, 1), (1, 0)]


def test_preparations_of_several_models_add_up() -> None:
    progress = progress_for(3)
    progress.add_prepared(Prepared(Query("q"), (), truncated_doc_ids=("d2", "d0")), wait_ms=0.5, took_ms=1.0)
    progress.add_prepared(Prepared(Query("q"), (), truncated_doc_ids=("d0", "d1")), wait_ms=0.5, took_ms=2.0)
    trace = progress.ranking(range(3), 0.0).trace
    assert (trace.queue_ms, trace.prepare_ms, trace.truncated_doc_ids) == (1.0, 3.0, ("d2", "d0", "d1"))


def test_passages_cut_in_a_window_are_named_once() -> None:
    """`truncated` holds places in the window, the trace ids."""
    progress = progress_for(4, Sliding(3, 2))
    add_window(progress, (1, 2, 3), result([0.1, 0.3, 0.2], truncated=(2, 0)))
    add_window(progress, (0, 2, 3), result([0.1, 0.3, 0.2], truncated=(2, 1)))
    assert progress.ranking([2, 3, 0, 1], 0.0).trace.truncated_doc_ids == ("d3", "d1", "d2")


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
def test_partial_answer_says_how_many_windows_ran(
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
    assert [row.position for row in progress.partial_ranking(0.0).ranked] == [0, 1], "nothing is known yet"
    add_window(progress, (1, 2), result([0.0, 1.0]))
    progress.order = (0, 2, 1)
    ranking = progress.partial_ranking(0.0)
    assert [(row.position, row.score) for row in ranking.ranked] == [(0, 3.0), (2, 2.0)]
    assert ranking.score_kind is ScoreKind.RANK


def test_partial_answer_to_nothing_is_empty() -> None:
    assert progress_for(0).partial_ranking(0.0).ranked == ()
