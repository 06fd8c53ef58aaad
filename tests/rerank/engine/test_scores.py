"""Scores: with the first stage's, compared with a slow reference; and made distinct."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.scores import are_distances, first_stage_scores, kendall_tau, strictly_decreasing, with_signals
from rerank.engine.strategies import RankStage, Single, Sliding, Strategy, TopDown
from rerank.types import Passage, Query, Ranking, RankOptions, ScoreKind, Window, WindowRanking
from tests.fakes import NumberRanker, numbered_passages
from tests.rerank.engine.harness import LARGE_BATCHES, positions


def slow_z_scores(scores: Sequence[float]) -> list[float]:
    deviation = pstdev(scores)
    return [(score - fmean(scores)) / deviation if deviation else 0.0 for score in scores]


async def ranked(numbers: Sequence[float], first_stage: Sequence[float | None], *stages: RankStage) -> Ranking:
    """The ranking of candidates with these numbers as relevance and these scores of the first stage."""
    pairs = zip(numbered_passages(numbers), first_stage, strict=True)
    return await run(tuple(replace(passage, score=score) for passage, score in pairs), *stages)


async def run(candidates: tuple[Passage, ...], *stages: RankStage, stride: int = 0) -> Ranking:
    async with Engine({"number": NumberRanker(), "preranker": by_length()}, LARGE_BATCHES) as engine:
        return await engine.run(Request(Query("q"), candidates, stages, RankOptions(stride=stride)))


def step(strategy: Strategy, weight: float = 0.0, has_scores: bool = True) -> RankStage:
    return RankStage("number", strategy, weight, has_scores)


def interpolate(ranking: WindowRanking, first_stage: Sequence[float], weight: float) -> WindowRanking:
    window = Window(Query("q"), (), first_stage=tuple(first_stage), weight=weight)
    return with_signals(ranking, window)


def preranker(strategy: Strategy, weight: float = 0.0) -> RankStage:
    return RankStage("preranker", strategy, weight)


def by_length() -> NumberRanker:
    """A preranker that scores a passage by the length of its doc_id."""
    return NumberRanker(scores_of=lambda window: [float(len(passage.doc_id)) for passage in window.passages])


pairs = st.lists(st.tuples(st.integers(-99, 99), st.integers(-99, 99)), min_size=1, max_size=20)


@given(pairs, st.floats(0, 100, exclude_min=True))
def test_scores_equal_the_formula(scores, weight):
    ranker, first_stage = ([float(pair[side]) for pair in scores] for side in (0, 1))
    expected = [a + weight * b for a, b in zip(slow_z_scores(ranker), slow_z_scores(first_stage), strict=True)]
    found = interpolate(WindowRanking(tuple(ranker), repairs=2), first_stage, weight)
    assert found.scores == pytest.approx(expected, abs=1e-9)
    assert found.repairs == 2


async def test_without_a_weight_the_scores_are_the_models_own():
    ranking = await ranked([1.0, 2.0, 3.0], [30.0, 20.0, 10.0], step(Single(20)))
    assert [row.score for row in ranking.ranked] == [3.0, 2.0, 1.0]


@given(st.lists(st.tuples(*[st.integers(-99, 99)] * 3), min_size=1, max_size=20), st.floats(0, 100))
def test_words_of_a_ranker_are_added_with_and_without_a_first_stage(rows, weight):
    ranker, first_stage, lexical = ([float(row[side]) for row in rows] for side in range(3))
    z, f = slow_z_scores(ranker), slow_z_scores(first_stage)
    expected = [a + weight * b + c for a, b, c in zip(z, f, lexical, strict=True)]
    found = interpolate(WindowRanking(tuple(ranker), lexical=tuple(lexical)), first_stage, weight)
    assert found.scores == pytest.approx(expected, abs=1e-6)


def test_tie_keeps_first_stage_order():
    assert interpolate(WindowRanking((1.0, 2.0)), [2.0, 1.0], 1.0).permutation == (0, 1)


def test_first_stage_with_equal_scores_counts_by_reciprocal_ranks():
    assert first_stage_scores([0.5] * 3) == [1 / 61, 1 / 62, 1 / 63]
    assert first_stage_scores([0.5, 0.5, 0.5, 0.4]) == [0.5, 0.5, 0.5, 0.4]


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
def test_first_stage_without_a_finite_score_counts_by_reciprocal_ranks(score):
    assert first_stage_scores([7.0, score]) == [1 / 61, 1 / 62]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_scores_count_as_distances_exactly_if_they_never_fall_and_differ(scores):
    falls = any(after < before for before, after in pairwise(scores))
    expected = [-score for score in scores] if not falls and len({*scores}) > 1 else None
    assert are_distances(scores) == (expected is not None)
    if expected:
        assert first_stage_scores(scores) == expected
    rising = sorted(scores)
    if len({*scores}) > 1:
        assert first_stage_scores(rising) == [-score for score in rising]


async def test_distances_rank_as_the_scores_that_fall_by_the_same_steps_and_the_reply_says_so():
    numbers = [1.0, 5.0, 3.0]
    falling, rising = [
        await ranked(numbers, scores, step(Single(20), 2.0)) for scores in ([-0.1, -0.1, -0.7], [0.1, 0.1, 0.7])
    ]
    assert [row.score for row in rising.ranked] == pytest.approx([row.score for row in falling.ranked])
    assert [row.position for row in rising.ranked] == [row.position for row in falling.ranked]
    assert falling.trace.model_warning == ""
    assert rising.trace.model_warning == (
        "the first-stage scores rise along the list, so they are read as distances: lower ones are better"
    )
    assert {row.position: row.passage.score for row in rising.ranked} == {0: 0.1, 1: 0.1, 2: 0.7}  # as sent


async def test_distances_that_do_not_count_are_no_warning():
    assert (await ranked([1.0, 5.0], [0.1, 0.7], step(Single(20)))).trace.model_warning == ""


@pytest.mark.parametrize("lost", [None, float("nan")])
async def test_score_that_turns_those_of_the_others_off_is_told(lost):
    ranking = await ranked([1.0, 2.0, 3.0], [30.0, lost, 10.0], step(Single(20), 2.0))
    warning = "1 of 3 candidates have no finite first-stage score, so the scores of the others do not count"
    assert ranking.trace.model_warning == warning
    for scores in ([None] * 3, [30.0, 20.0, 10.0]):
        assert not (await ranked([1.0, 2.0, 3.0], scores, step(Single(20), 2.0))).trace.model_warning


ONE_WINDOW = [Single(20), Sliding(20, 10), TopDown(20)]


@pytest.mark.parametrize("strategy", ONE_WINDOW, ids=str)
async def test_first_stage_counts_in_one_window_of_every_strategy(strategy):
    """z-scores of the ranker: -√1.5, 0, √1.5; of the first stage: √1.5, 0, -√1.5."""
    numbers, first_stage = [1.0, 2.0, 3.0], [30.0, 20.0, 10.0]
    ranking = await ranked(numbers, first_stage, step(strategy, 2.0))
    assert positions(ranking) == [0, 1, 2]
    assert ranking.score_kind is ScoreKind.WINDOW_SCORE
    assert [row.score for row in ranking.ranked] == pytest.approx([1.5**0.5, 0.0, -(1.5**0.5)])
    assert (ranking.trace.first_stage_weight, ranking.trace.kendall_tau, ranking.trace.model_warning) == (2.0, 1.0, "")
    assert ranking.trace.windows[0].permutation == (0, 1, 2)
    weak = await ranked(numbers, first_stage, step(strategy, 0.5))
    assert positions(weak) == [2, 1, 0]
    assert weak.trace.kendall_tau == -1.0


SEVERAL_WINDOWS = [Sliding(2, 1), TopDown(2)]


@pytest.mark.parametrize("strategy", SEVERAL_WINDOWS, ids=str)
async def test_weight_over_several_windows_is_left_out_with_a_warning(strategy):
    lists = [1.0, 2.0, 3.0, 4.0], [9.0, 8.0, 7.0, 6.0]
    ranking = await ranked(*lists, step(strategy, 99.0))
    assert positions(ranking) == positions(await ranked(*lists, step(strategy)))
    assert (ranking.trace.first_stage_weight, ranking.trace.strategy) == (0.0, str(strategy))
    warning = f"first_stage_weight 99 is left out: {strategy} reads 4 candidates in up to "
    assert ranking.trace.model_warning.startswith(warning)
    assert ranking.trace.model_warning.endswith("use the strategy single, or at most 2 candidates")


async def test_preranker_counts_by_its_scores():
    """The preranker's scores are 3, 2, 2; the ranker's are 0, 1, 2 in that order."""
    rows = (("bb", 1), ("aaa", 0), ("cc", 2))
    candidates = tuple(Passage(doc_id, f"{number}", 1.0) for doc_id, number in rows)
    assert positions(await run(candidates, preranker(Single(20)), step(Single(20)))) == [2, 0, 1]
    ranking = await run(candidates, preranker(Single(20)), step(Single(20), 9.0))
    assert positions(ranking) == [1, 2, 0]
    assert ranking.trace.first_stage_weight == 0.0, "of the first stage"
    assert ranking.score_kind is ScoreKind.RANK


async def test_first_stage_counts_in_the_order_of_the_preranker():
    """The preranker keeps the first-stage order, so the window of two holds the first two candidates."""
    stages = preranker(Single(20), 99.0), step(Single(2))
    ranking = await ranked([1.0, 2.0, 3.0], [30.0, 20.0, 10.0], *stages)
    assert positions(ranking) == [1, 0, 2]
    assert ranking.trace.first_stage_weight == 99.0
    assert ranking.trace.strategy == "cascade(preranker: single(20) + 99 first stage > 2)"


@given(st.permutations(range(12)))
def test_kendall_tau_equals_scipys(order):
    assert kendall_tau(order) == pytest.approx(kendalltau(range(12), order).statistic)


# --- distinct scores ---

descending = st.lists(st.floats(-1e30, 1e30), max_size=30).map(lambda scores: sorted(scores, reverse=True))


@given(descending)
def test_strictly_decreasing_decreases_strictly_in_float32_and_raises_no_score(scores):
    lowered = strictly_decreasing(scores)
    assert len(lowered) == len(scores)
    assert all(np.float32(above) > np.float32(below) for above, below in pairwise(lowered))
    assert all(new <= old for new, old in zip(lowered, scores, strict=True))


async def test_passages_without_text_do_not_make_a_second_window_whose_scores_cannot_be_compared():
    candidates = tuple(Passage(f"d{n}", text, float(9 - n)) for n, text in enumerate(["1", "2", " ", ""]))
    ranking = await run(candidates, step(Sliding(2, 1), 99.0))
    assert (ranking.trace.first_stage_weight, ranking.trace.model_warning) == (99.0, "")
    assert ranking.trace.strategy == "sliding(2/1) + 99 first stage"


@pytest.mark.parametrize(
    ("strategy", "warning"), [(Single(20), "stride 3 is left out: single(20) has none"), (Sliding(4, 3), "")]
)
async def test_stride_without_effect_is_told(strategy, warning):
    ranking = await run(tuple(Passage(f"d{n}", str(n)) for n in range(3)), step(strategy), stride=3)
    assert ranking.trace.model_warning == warning
