"""Relevance of results: which requests have it, and what `min_relevance` leaves out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from rerank.config import FirstModel, IdentityModel, ServiceConfig
from rerank.config.encoder import EncoderConfig
from rerank.config.relevance import DEFAULT_RELEVANCE, RelevanceCurve
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single
from rerank.errors import DeadlineExceeded, InvalidRequest
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.relevance import at_least, gives_relevance, with_relevance
from rerank.types import Passage, Query, Ranking, RankOptions, ScoreKind, Window, WindowRanking
from tests.fakes import NumberRanker, number_in, numbered_passages
from tests.serving import reranker_of

CURVE = RelevanceCurve(intercept=-2.0, slope=6.0)


def cosine_ranker(depth: int = 100, cosine_of: Callable[[str], float] = number_in) -> NumberRanker:
    """Scores by the number in the text, which is its cosine, too; the cosines of the first `depth` passages are read.

    Its scores depend on the list, as a fusion's do, and its cosines do not.
    """

    def ranking(window: Window) -> WindowRanking:
        scores = [cosine_of(passage.text) for passage in window.passages]
        known, mean = set(WindowRanking(tuple(scores)).permutation[:depth]), sum(scores) / len(scores)
        cosines = (score if place in known else math.nan for place, score in enumerate(scores))
        return WindowRanking(tuple(score - mean for score in scores), cosines=tuple(cosines))

    return NumberRanker(scores_of=ranking, relevance="cosine")


def pointwise(kind: ScoreKind) -> NumberRanker:
    return NumberRanker(score_kind=kind, relevance="score")


PROBABILITIES = pointwise(ScoreKind.POINTWISE_PROBABILITY)


async def ranked(
    rankers: Mapping[str, Ranker], numbers: Sequence[float], steps: Sequence[RankStage], **options: Any
) -> Ranking:
    candidates = tuple(numbered_passages(numbers))
    return await of_candidates(rankers, candidates, steps, **options)


async def of_candidates(
    rankers: Mapping[str, Ranker], candidates: tuple[Passage, ...], steps: Sequence[RankStage], **options: Any
) -> Ranking:
    request = Request(Query("q"), candidates, tuple(steps), RankOptions(**options))
    async with Engine(rankers, ServiceConfig().engine) as engine:
        ranking = await engine.run(request)
    return with_relevance(ranking, rankers[steps[-1].model].info, CURVE, candidates)


def relevances(ranking: Ranking) -> list[float | None]:
    return [item.relevance for item in ranking.ranked]


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


async def test_relevance_in_a_list_is_that_of_the_passage_alone():
    rankers, steps = {"m": cosine_ranker()}, [RankStage("m", Single(10))]
    in_list = await ranked(rankers, [0.3, 0.9, 0.5, 0.7], steps)
    for item in in_list.ranked:
        number = float(item.passage.text.split()[-1])
        assert relevances(await ranked(rankers, [number], steps)) == [item.relevance]


@pytest.mark.parametrize("blank", ["", " \t\n"])
async def test_blank_text_has_no_relevance(blank):
    candidates = (Passage("d0", blank), Passage("d1", "a text"))
    found = await of_candidates({"m": cosine_ranker(cosine_of=lambda _: 0.8)}, candidates, [RankStage("m", Single(10))])
    assert relevances(found) == [pytest.approx(logistic(6 * 0.8 - 2)), 0.0]


async def test_relevance_does_not_depend_on_the_number_of_results_nor_on_the_order():
    """The last model orders against the cosines: the relevance then rises along the order."""
    against = NumberRanker(scores_of=lambda window: [-number_in(passage.text) for passage in window.passages])
    rankers = {"m": cosine_ranker(), "last": against}
    steps = [RankStage("m", Single(10)), RankStage("last", Single(2))]
    found = await ranked(rankers, [0.2, 0.9, 0.5], steps)
    whole = relevances(found)
    assert whole == pytest.approx([logistic(6 * cosine - 2) for cosine in (0.5, 0.9, 0.2)])
    assert relevances(await ranked(rankers, [0.2, 0.9, 0.5], steps, top_n=1)) == whole[:1]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(ScoreKind.POINTWISE, [logistic(0.75), logistic(0.25)]), (ScoreKind.POINTWISE_PROBABILITY, [0.75, 0.25])],
)
async def test_pointwise_model_gives_its_own_to_what_it_read(kind, expected):
    found = await ranked({"m": pointwise(kind)}, [0.25, 0.75, 0.5], [RankStage("m", Single(2))])
    assert [item.passage.doc_id for item in found.ranked] == ["d1", "d0", "d2"]
    assert relevances(found) == [*map(pytest.approx, expected), None]


async def test_min_relevance_leaves_out_what_is_below_or_unknown():
    found = await ranked({"m": PROBABILITIES}, [0.25, 0.75, 0.5], [RankStage("m", Single(2))])
    for least, expected in ((0.0, ["d1", "d0"]), (0.25, ["d1", "d0"]), (0.5, ["d1"]), (0.76, [])):
        kept = at_least(found, RankOptions(min_relevance=least))
        assert [item.passage.doc_id for item in kept.ranked] == expected
        assert kept.trace == found.trace or not expected


async def test_top_n_counts_the_results_that_min_relevance_leaves():
    """The last model orders against the cosines, so that the first results are those that are left out."""
    against = cosine_ranker()
    against.score = lambda parts: [  # type: ignore[method-assign]
        replace(result, scores=tuple(-score for score in result.scores)) for result in cosine_ranker().score(parts)
    ]
    async with reranker_of({"m": against}) as reranker:
        for top_n, expected in ((0, ["d0", "d3", "d1"]), (2, ["d0", "d3"]), (4, ["d0", "d3", "d1"])):
            options = RankOptions(min_relevance=0.1, top_n=top_n)
            found = await reranker.rerank("q", numbered_passages([0.5, 0.9, 0.1, 0.7, 0.2]), options)
            assert [item.passage.doc_id for item in found.ranked] == expected


async def test_answer_in_the_place_of_a_failure_says_where_min_relevance_is_not_applied():
    found = await ranked({"m": PROBABILITIES}, [0.25, 0.75, 0.5], [RankStage("m", Single(2))])
    failed = replace(found, trace=replace(found.trace, failure=DeadlineExceeded, reason="the deadline came"))
    kept = at_least(failed, RankOptions(min_relevance=0.5))
    assert [item.passage.doc_id for item in kept.ranked] == ["d1", "d2"], "d2 was not read"
    note = "min_relevance 0.5 is not applied to 1 results, whose relevance is unknown"
    assert kept.trace.reason == f"the deadline came; {note}"
    all_known = replace(failed, ranked=failed.ranked[:2])
    assert at_least(all_known, RankOptions(min_relevance=0.5)).trace.reason == "the deadline came"


async def test_passage_whose_cosine_was_not_read_has_no_relevance():
    found = await ranked({"m": cosine_ranker(depth=2)}, [0.2, 0.9, 0.5], [RankStage("m", Single(10))])
    assert relevances(found) == [pytest.approx(logistic(6 * 0.9 - 2)), pytest.approx(logistic(6 * 0.5 - 2)), None]


async def test_own_probability_is_not_mixed_with_the_relevance_of_a_preranker():
    rankers = {"m": cosine_ranker(), "last": pointwise(ScoreKind.POINTWISE_PROBABILITY)}
    steps = [RankStage("m", Single(10)), RankStage("last", Single(2))]
    assert relevances(await ranked(rankers, [0.2, 0.9, 0.5], steps)) == [0.9, 0.5, None]


async def test_encoder_without_a_curve_gives_none():
    candidates = tuple(numbered_passages([0.2, 0.9]))
    request = Request(Query("q"), candidates, (RankStage("m", Single(10)),), RankOptions())
    async with Engine({"m": cosine_ranker()}, ServiceConfig().engine) as engine:
        ranking = await engine.run(request)
    assert with_relevance(ranking, cosine_ranker().info, None, candidates) == ranking


@pytest.mark.parametrize("extreme", [1e4, 1e30])
async def test_extreme_score_gives_a_probability(extreme):
    ranker = NumberRanker(scores_of=lambda _: (extreme, -extreme), score_kind=ScoreKind.POINTWISE, relevance="score")
    assert relevances(await ranked({"m": ranker}, [1, 2], [RankStage("m", Single(2))])) == pytest.approx([1.0, 0.0])


def test_model_gives_relevance_by_its_own_score_or_by_cosines_of_any_step():
    steps = (RankStage("a", Single(2)), RankStage("b", Single(2)))
    plain, cosine = NumberRanker().info, cosine_ranker().info
    own = pointwise(ScoreKind.POINTWISE).info
    assert gives_relevance(steps, {"a": cosine, "b": plain})
    assert gives_relevance(steps, {"a": plain, "b": own})
    assert not gives_relevance(steps, {"a": own, "b": plain})
    assert not gives_relevance(steps, {"a": plain, "b": plain})


@pytest.mark.parametrize(
    "changed", [{"slope": 0.0}, {"slope": -1.0}, {"intercept": math.nan}, {"slope": math.inf}, {"other": 1.0}]
)
def test_curve_of_another_form_is_refused(changed):
    with pytest.raises(ValidationError):
        RelevanceCurve.model_validate({"intercept": -2.0, "slope": 6.0} | changed)


def test_default_encoder_has_a_curve_and_settings_give_another(encoder):
    assert encoder.relevance == DEFAULT_RELEVANCE
    assert Encoder(EncoderConfig(relevance=CURVE), "cpu").relevance == CURVE
    assert Encoder(str(encoder.folder), "cpu").relevance is None


# --- requests for relevance ---


def registry() -> ModelRegistry:
    models = [
        FirstModel(name="last", ranker="first", strategy="cascade", preranker="vectors", window_size=10),
        IdentityModel(name="vectors", ranker="identity", window_size=10),
        IdentityModel(name="plain", ranker="identity", window_size=10),
    ]
    last, vectors = NumberRanker(), cosine_ranker()
    return ModelRegistry(models, {"last": last, "vectors": vectors, "plain": NumberRanker()})


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, math.inf])
def test_min_relevance_that_is_not_a_probability_is_refused(value):
    with pytest.raises(InvalidRequest, match=r"is not between 0 and 1; use a probability, such as 0\.5") as caught:
        registry().resolve(RankOptions(min_relevance=value))
    assert caught.value.field == "min_relevance"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            RankOptions("plain"),
            r"model plain gives no relevance; use a model that gives it \(last, vectors\), or leave it out",
        ),
        (
            RankOptions(strategy="sliding"),
            "sliding.* gives no relevance, as no stage reads a cosine; leave strategy and",
        ),
        (RankOptions(preranker="plain"), "cascade.* gives no relevance, as no stage reads a cosine"),
    ],
)
def test_min_relevance_without_relevance_is_refused_with_the_way_out(options, message):
    registry().resolve(options)
    with pytest.raises(InvalidRequest, match=message) as caught:
        registry().resolve(replace(options, min_relevance=0.5))
    assert caught.value.field == "min_relevance"
