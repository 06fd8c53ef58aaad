"""Requests: their windows, and the final ranking and trace that come from windows with given results."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rerank.config import EngineConfig
from rerank.engine.engine import Engine, ranking_of
from rerank.engine.request import RankedWindow, Request
from rerank.engine.strategies import Positions, RankStage, Round, Single, Sliding, Strategy, TopDown
from rerank.rankers.base import RankerInfo
from rerank.rankers.identity import IdentityRanker
from rerank.types import (
    Completeness,
    Passage,
    PreparedTexts,
    Query,
    Ranking,
    RankOptions,
    ScoreKind,
    Window,
    WindowRanking,
    WindowTrace,
)
from tests.fakes import NumberRanker, number_in, numbered_passages
from tests.rerank.engine.harness import engine_for, positions

SLIDING = Sliding(20, 10)


def begun(*stages: RankStage, n: int, top_n: int = 0) -> Request:
    """A request before any work."""
    info = RankerInfo("kind", "id", "revision", "template", 100, ScoreKind.WINDOW_LOG_PROB)
    request = Request(Query("q"), tuple(numbered_passages(range(n))), stages, RankOptions(top_n=top_n))
    request.begin({stage.model: info for stage in stages})
    request.begin_stage(stages[0], info)
    return request


def request_with(n: int, strategy: Strategy = SLIDING) -> Request:
    return begun(RankStage("name", strategy), n=n)


def result(
    scores: Sequence[float],
    tokens: int = 0,
    queue_ms: float = 0.0,
    model_ms: float = 0.0,
    truncated: tuple[int, ...] = (),
    repairs: int = 0,
) -> RankedWindow:
    encoded = Window(Query("q"), (), tokens=tokens, truncated=truncated)
    return RankedWindow(encoded, WindowRanking(tuple(scores), repairs), queue_ms, model_ms)


def add_round(request: Request, windows: Sequence[Positions], *results: RankedWindow) -> None:
    request.add_round(Round(tuple(windows)), results)


def read_windows(request: Request, windows: Sequence[Positions]) -> None:
    """Adds a round for each window, with scores of 0."""
    for window in windows:
        add_round(request, [window], result([0.0] * len(window)))


def ordered(request: Request, order: Sequence[int], total_ms: float = 0.0) -> Ranking:
    request.order = order
    return ranking_of(request, total_ms)


def rows(ranking: Ranking) -> list[tuple[int, float]]:
    return [(row.position, row.score) for row in ranking.ranked]


@pytest.mark.parametrize(("top_n", "is_final", "needed"), [(1, True, 1), (1, False, 0), (2, True, 0), (0, True, 0)])
def test_window_holds_the_passages_of_its_positions(top_n, is_final, needed):
    """Only the last window of the last stage needs no more than `top_n`; 0: the order of all."""
    prepared, round_ = dict(enumerate(numbered_passages(range(5)))), Round(((3, 0),), is_final)
    stages = RankStage("preranker", SLIDING), RankStage("m", Single(20))
    request, windows = begun(*stages, n=5, top_n=top_n), []
    for stage in stages:
        request.begin_stage(stage, request.info)
        windows.append(request.window(round_, (3, 0), Query("q"), prepared))
    read = prepared[3], prepared[0]
    assert windows == [Window(Query("q"), read, 0), Window(Query("q"), read, needed)]


@pytest.mark.parametrize(
    ("strategy", "windows"), [(Single(2), [(0, 1)]), (Sliding(2, 1), [(1, 2), (0, 1)]), (Sliding(3, 3), [])], ids=str
)
def test_scores_are_ranks_if_no_single_window_held_all_candidates(strategy, windows):
    """Scores of different windows are not comparable."""
    request = request_with(3, strategy)
    read_windows(request, windows)
    ranking = ordered(request, [2, 0, 1])
    assert (rows(ranking), ranking.score_kind) == ([(2, 3.0), (0, 2.0), (1, 1.0)], ScoreKind.RANK)


@pytest.mark.parametrize(
    ("n", "windows", "completeness", "reason"),
    [
        (0, [], Completeness.FULL, ""),
        (3, [(0, 1, 2)], Completeness.FULL, ""),
        (3, [(1, 2), (0, 2)], Completeness.FULL, ""),
        (3, [(0, 1)], Completeness.PARTIAL, "sliding(20/10) read 2 of 3 candidates"),
        (3, [(1, 2), (2, 1)], Completeness.PARTIAL, "sliding(20/10) read 2 of 3 candidates"),
        (3, [], Completeness.PARTIAL, "sliding(20/10) read 0 of 3 candidates"),
    ],
)
def test_completeness_states_how_much_was_read(n, windows, completeness, reason):
    request = request_with(n)
    read_windows(request, windows)
    trace = ranking_of(request, 0.0).trace
    assert (trace.completeness, trace.reason) == (completeness, reason)


@pytest.mark.parametrize(("answered", "completeness"), [(0, Completeness.NONE), (1, Completeness.PARTIAL)])
def test_window_whose_model_did_not_end_its_thinking_was_not_read(answered, completeness):
    request = request_with(4)
    read_windows(request, [(2, 3)][:answered])
    silent = result([0.0, 0.0])
    add_round(request, [(0, 1)], silent._replace(ranking=replace(silent.ranking, is_unanswered=True)))
    trace = ranking_of(request, 0.0).trace
    assert trace.completeness is completeness
    assert trace.reason.startswith(f"1 of {answered + 1} windows kept their order")


def test_round_takes_the_time_of_the_window_that_was_answered_last():
    request = request_with(4)
    add_round(request, [(2, 3), (0, 1)], result([0, 0], 1, queue_ms=5.0, model_ms=1.0), result([0, 0], 1, 1.0, 90.0))
    assert (request.queue_ms, request.model_ms) == (1.0, 90.0)


def test_trace_describes_windows_cost_and_model():
    """A round takes the time of its slowest window, as its windows wait and run concurrently."""
    request = request_with(3, Sliding(2, 1))
    request.add_prepared((), PreparedTexts(Query("q"), (), ("d2", "d0")), 0.25, 0.5)
    request.add_prepared((), PreparedTexts(Query("q"), (), ("d0", "d1")), 0.25, 1.5)
    window = result([0.1, 0.2], tokens=7, queue_ms=1.0, model_ms=4.0, repairs=2)
    add_round(request, [(1, 2), (0, 2)], window, result([0.4, 0.3], 5, 2.0, 9.0))
    add_round(request, [(0, 2)], result([0.4, 0.3], tokens=5, queue_ms=2.0, model_ms=8.0, repairs=3))
    trace = ordered(request, [0, 2, 1], 30.0).trace
    kind = request.info.score_kind
    assert trace.windows == (
        WindowTrace((1, 2), (1, 0), 7, (0.1, 0.2), kind, 0, "name"),
        WindowTrace((0, 2), (0, 1), 5, (0.4, 0.3), kind, 0, "name"),
        WindowTrace((0, 2), (0, 1), 5, (0.4, 0.3), kind, 1, "name"),
    )
    assert [(window.queue_ms, window.model_ms) for window in trace.windows] == [(1.0, 4.0), (2.0, 9.0), (2.0, 8.0)]
    assert (trace.rounds, trace.tokens, trace.repairs, trace.truncated_doc_ids) == (2, 17, 5, ("d0", "d1", "d2"))
    assert (trace.queue_ms, trace.prepare_ms, trace.model_ms, trace.total_ms) == (4.5, 2.0, 17.0, 30.0)
    assert (trace.model, trace.strategy) == ("name", "sliding(2/1)")


def blank_first(window: Window) -> list[float]:
    """Scores a passage without text above all others."""
    return [number_in(passage.text) if passage.text.strip() else 99.0 for passage in window.passages]


@pytest.mark.parametrize("strategy", [Single(10), Sliding(3, 1), TopDown(3), Single(2)], ids=str)
@pytest.mark.parametrize("top_n", [0, 2, 4])
async def test_document_without_text_stands_last(strategy, top_n):
    """5 of 20 lists of unrelated documents began with it."""
    texts = ["relevance 1", "", "relevance 3", " \n", "relevance 2", "relevance 5"]
    candidates = tuple(Passage(str(place), text) for place, text in enumerate(texts))
    request = Request(Query("q"), candidates, (RankStage("number", strategy),), RankOptions(top_n=top_n))
    async with engine_for(NumberRanker(scores_of=blank_first)) as engine:
        ranking = await engine.run(request)
    read = {Single(2): [2, 0, 4, 5], Sliding(3, 1): [5, 2, 0, 4]}.get(strategy, [5, 2, 4, 0])  # type: ignore[call-overload]
    assert positions(ranking) == [*read, 1, 3][: top_n or 6]
    scores = [row.score for row in ranking.ranked]
    assert scores == sorted(scores, reverse=True)


async def test_document_without_text_is_ranked_by_a_model_that_reads_it():
    candidates = tuple(Passage(str(place), text) for place, text in enumerate(["relevance 1", "", "relevance 3"]))
    request = Request(Query("q"), candidates, (RankStage("number", Single(10)),))
    ranker = NumberRanker(scores_of=blank_first, reads_blank=True)
    async with engine_for(ranker) as engine:
        assert positions(await engine.run(request)) == [1, 2, 0]


async def test_document_without_text_keeps_its_place_where_nothing_is_read():
    request = Request(Query("q"), (Passage("a", ""), Passage("b", "x")), (RankStage("i", Single(9)),))
    async with Engine({"i": IdentityRanker()}, EngineConfig()) as engine:
        assert positions(await engine.run(request)) == [0, 1]
