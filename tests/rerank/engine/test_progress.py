"""Requests: their windows, and the final ranking and trace that come from windows with given results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.job import Completed, RankJob
from rerank.engine.progress import Progress, RankedWindow
from rerank.engine.strategies import Positions, Round, Single, Sliding, Step, Strategy, TopDown
from rerank.rankers.base import RankerInfo
from rerank.rankers.identity import IdentityRanker
from rerank.types import (
    Completeness,
    Passage,
    Prepared,
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


def progress_for(
    n: int, strategy: Strategy = SLIDING, top_n: int = 0, kind: ScoreKind = ScoreKind.WINDOW_LOG_PROB
) -> Progress:
    candidates = tuple(numbered_passages(range(n)))
    info = RankerInfo("kind", "id", "revision", "template", 100, kind)
    request = RankJob(Query("q"), candidates, (Step("name", strategy),), RankOptions(top_n=top_n))
    return Progress(request, info, range(n))


def result(
    scores: Sequence[float],
    tokens: int = 0,
    queue_ms: float = 0.0,
    model_ms: float = 0.0,
    truncated: tuple[int, ...] = (),
    repairs: int = 0,
) -> RankedWindow:
    encoded = Window(Query("q"), (), tokens=tokens, truncated=truncated)
    return encoded, Completed(WindowRanking(tuple(scores), repairs), queue_ms, model_ms)


def add_round(progress: Progress, windows: Sequence[Positions], *results: RankedWindow) -> None:
    progress.add_round(progress.job.steps[0], Round(tuple(windows)), results, progress.info)


def read_windows(progress: Progress, windows: Sequence[Positions]) -> None:
    """Adds a round for each window, in which all scores are 0."""
    for window in windows:
        add_round(progress, [window], result([0.0] * len(window)))


def ranking_of(progress: Progress, order: Sequence[int], total_ms: float = 0.0) -> Ranking:
    progress.order = order
    return progress.ranking(total_ms)


def rows(ranking: Ranking) -> list[tuple[int, float]]:
    return [(row.position, row.score) for row in ranking.ranked]


def test_window_holds_the_passages_of_its_positions() -> None:
    """Only the last step needs no more than `top_n`."""
    passages, round_ = tuple(numbered_passages(range(5))), Round(((3, 0),), is_final=True)
    steps = Step("preranker", SLIDING), Step("m", Single(20))
    request = RankJob(Query("q"), (), steps, RankOptions(top_n=1))
    progress = replace(progress_for(5), job=request)
    prepared = Prepared(Query("q"), passages)
    windows = [progress.window(prepared, step, round_, (3, 0), weight=0.0) for step in steps]
    read = passages[3], passages[0]
    assert windows == [Window(Query("q"), read, 0), Window(Query("q"), read, 1)]


@pytest.mark.parametrize(
    ("strategy", "windows"), [(Single(2), [(0, 1)]), (Sliding(2, 1), [(1, 2), (0, 1)]), (Sliding(3, 3), [])], ids=str
)
def test_scores_are_ranks_if_no_single_window_held_all_candidates(strategy: Strategy, windows: list[Positions]) -> None:
    """Scores of different windows are not comparable."""
    progress = progress_for(3, strategy)
    read_windows(progress, windows)
    ranking = ranking_of(progress, [2, 0, 1])
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
def test_completeness_states_how_much_was_read(
    n: int, windows: list[Positions], completeness: Completeness, reason: str
) -> None:
    progress = progress_for(n)
    read_windows(progress, windows)
    trace = progress.ranking(0.0).trace
    assert (trace.completeness, trace.reason) == (completeness, reason)


def test_trace_describes_windows_cost_and_model() -> None:
    """A round takes the time of its slowest window, as its windows wait and run concurrently."""
    progress = progress_for(3, Sliding(2, 1))
    progress.add_prepared(Completed(Prepared(Query("q"), (), ("d2", "d0")), 0.25, 0.5))
    progress.add_prepared(Completed(Prepared(Query("q"), (), ("d0", "d1")), 0.25, 1.5))
    window = result([0.1, 0.2], tokens=7, queue_ms=1.0, model_ms=4.0, repairs=2)
    add_round(progress, [(1, 2), (0, 2)], window, result([0.4, 0.3], 5, 2.0, 9.0))
    add_round(progress, [(0, 2)], result([0.4, 0.3], tokens=5, queue_ms=2.0, model_ms=8.0, repairs=3))
    trace = ranking_of(progress, [0, 2, 1], 30.0).trace
    kind = progress.info.score_kind
    assert trace.windows == (
        WindowTrace((1, 2), (1, 0), 7, (0.1, 0.2), kind, 0, "name"),
        WindowTrace((0, 2), (0, 1), 5, (0.4, 0.3), kind, 0, "name"),
        WindowTrace((0, 2), (0, 1), 5, (0.4, 0.3), kind, 1, "name"),
    )
    assert [(window.queue_ms, window.model_ms) for window in trace.windows] == [(1.0, 4.0), (2.0, 9.0), (2.0, 8.0)]
    assert (trace.rounds, trace.tokens, trace.repairs, trace.truncated_doc_ids) == (2, 17, 5, ("d0", "d1", "d2"))
    assert (trace.queue_ms, trace.prepare_ms, trace.model_ms, trace.total_ms) == (4.5, 2.0, 17.0, 30.0)
    assert (trace.model, trace.strategy) == ("name", "sliding(2/1)")


class PrefersBlank(NumberRanker):
    """Scores a passage without text above all others."""

    def rank(self, windows: Sequence[Window]) -> list[WindowRanking]:
        texts = [[passage.text for passage in encoded.passages] for encoded in windows]
        return [WindowRanking(tuple(number_in(text) if text.strip() else 99.0 for text in some)) for some in texts]


@pytest.mark.parametrize("strategy", [Single(10), Sliding(3, 1), TopDown(3), Single(2)], ids=str)
@pytest.mark.parametrize("top_n", [0, 2, 4])
async def test_document_without_text_stands_last(strategy: Strategy, top_n: int) -> None:
    """5 of 20 lists of unrelated documents began with it."""
    texts = ["relevance 1", "", "relevance 3", " \n", "relevance 2", "relevance 5"]
    candidates = tuple(Passage(str(place), text) for place, text in enumerate(texts))
    request = RankJob(Query("q"), candidates, (Step("number", strategy),), RankOptions(top_n=top_n))
    async with engine_for(PrefersBlank()) as engine:
        ranking = await engine.run(request)
    read = {Single(2): [2, 0, 4, 5], Sliding(3, 1): [5, 2, 0, 4]}.get(strategy, [5, 2, 4, 0])  # type: ignore[call-overload]
    assert positions(ranking) == [*read, 1, 3][: top_n or 6]
    scores = [row.score for row in ranking.ranked]
    assert scores == sorted(scores, reverse=True)


async def test_document_without_text_keeps_its_place_where_nothing_is_read() -> None:
    request = RankJob(Query("q"), (Passage("a", ""), Passage("b", "x")), (Step("i", Single(9)),))
    async with Engine({"i": IdentityRanker()}, EngineConfig()) as engine:
        assert positions(await engine.run(request)) == [0, 1]
