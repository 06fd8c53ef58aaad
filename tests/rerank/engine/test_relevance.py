"""Relevance of results: which requests have it, and what `min_relevance` leaves out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rerank.config import IdentityModel, ServiceConfig
from rerank.engine.engine import Engine
from rerank.engine.relevance import at_least, gives_relevance, relevance_curve
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Single, Step
from rerank.rankers.base import Ranker
from rerank.relevance import OWN_LOG_ODDS, RelevanceCurve
from rerank.types import Candidate, Passage, Prepared, Query, Ranking, RankOptions, ScoreKind
from tests.fakes import NumberRanker, numbered_passages

OF_COSINE = RelevanceCurve(intercept=-2.0, slope=6.0, encoder_sha256="e")
EAST = np.array([1, 0], dtype=np.float32)


class VectorRanker(NumberRanker):
    """Scores by the number in the text; its vector of a text is at the cosine of that number to the query."""

    def __init__(self, curve: RelevanceCurve | None = OF_COSINE) -> None:
        super().__init__()
        self.info = replace(self.info, reads_vectors=True, relevance=curve)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        cosines = [float(passage.text.split()[-1]) for passage in passages]
        vectors = [np.array([c, math.sqrt(1 - c * c)], dtype=np.float32) for c in cosines]
        with_vectors = [replace(p, vector=vector) for p, vector in zip(passages, vectors, strict=True)]
        return Prepared(replace(query, vector=EAST), tuple(with_vectors))


def pointwise(kind: ScoreKind) -> NumberRanker:
    ranker = NumberRanker()
    ranker.info = replace(ranker.info, score_kind=kind, relevance=OWN_LOG_ODDS)
    return ranker


async def ranked(
    rankers: Mapping[str, Ranker], numbers: Sequence[float], steps: Sequence[Step], **options: Any
) -> Ranking:
    candidates = tuple(Candidate(passage) for passage in numbered_passages(numbers))
    async with Engine(rankers, ServiceConfig().engine) as engine:
        return await engine.run(RankRequest(Query("q"), candidates, tuple(steps), RankOptions(**options)))


def relevances(ranking: Ranking) -> list[float | None]:
    return [item.relevance for item in ranking.ranked]


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


async def test_relevance_is_the_curve_of_the_cosine() -> None:
    found = await ranked({"m": VectorRanker()}, [0.1, 0.9, 0.5], [Step("m", Single(10))])
    assert relevances(found) == pytest.approx([logistic(6 * cosine - 2) for cosine in (0.9, 0.5, 0.1)], rel=1e-5)


async def test_relevance_does_not_depend_on_the_number_of_results() -> None:
    """The model orders against its cosines, so that passages further down decide what the first one gets."""
    rankers = {"m": VectorRanker(), "last": NumberRanker()}
    rankers["last"].info = replace(rankers["last"].info, relevance=OF_COSINE)
    steps = [Step("m", Single(10)), Step("last", Single(2))]
    whole = relevances(await ranked(rankers, [0.2, 0.9, 0.5], steps))
    assert relevances(await ranked(rankers, [0.2, 0.9, 0.5], steps, top_n=1)) == whole[:1]


async def test_cascade_has_the_relevance_of_its_last_model() -> None:
    rankers = {"first": VectorRanker(None), "last": NumberRanker()}
    rankers["last"].info = replace(rankers["last"].info, relevance=OF_COSINE)
    cascade = [Step("first", Single(10)), Step("last", Single(2))]
    found = await ranked(rankers, [0.1, 0.9, 0.5], cascade)
    assert relevances(found) == pytest.approx([logistic(6 * cosine - 2) for cosine in (0.9, 0.5, 0.1)], rel=1e-5)
    alone = await ranked(rankers, [0.1, 0.9], [Step("last", Single(10))])
    assert relevances(alone) == [None, None], "no step read vectors"


async def test_model_without_a_curve_gives_none() -> None:
    assert relevances(await ranked({"m": VectorRanker(None)}, [0.1, 0.9], [Step("m", Single(10))])) == [None, None]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(ScoreKind.POINTWISE, [logistic(0.75), logistic(0.25)]), (ScoreKind.POINTWISE_PROBABILITY, [0.75, 0.25])],
)
async def test_pointwise_model_gives_its_own_to_what_it_read(kind: ScoreKind, expected: list[float]) -> None:
    found = await ranked({"m": pointwise(kind)}, [0.25, 0.75, 0.5], [Step("m", Single(2))])
    assert [item.candidate.passage.doc_id for item in found.ranked] == ["d1", "d0", "d2"]
    assert relevances(found) == [*map(pytest.approx, expected), None]


async def test_min_relevance_leaves_out_what_is_below_or_unknown() -> None:
    found = await ranked({"m": pointwise(ScoreKind.POINTWISE_PROBABILITY)}, [0.25, 0.75, 0.5], [Step("m", Single(2))])
    for least, expected in ((0.0, ["d1", "d0"]), (0.25, ["d1", "d0"]), (0.5, ["d1"]), (0.76, [])):
        kept = at_least(found, least)
        assert [item.candidate.passage.doc_id for item in kept.ranked] == expected
        assert kept.trace == found.trace


async def test_no_candidates_have_no_relevance() -> None:
    assert (await ranked({"m": VectorRanker()}, [], [Step("m", Single(10))])).ranked == ()


def test_curve_of_another_encoder_is_none() -> None:
    model = IdentityModel(name="m", ranker="identity", relevance=OF_COSINE)
    info = NumberRanker().info
    assert relevance_curve(model, info, "e") == OF_COSINE
    assert relevance_curve(model, info, "another") is None


def test_model_that_gives_probabilities_needs_no_curve() -> None:
    model = IdentityModel(name="m", ranker="identity")
    probability, logit = (pointwise(kind).info for kind in (ScoreKind.POINTWISE_PROBABILITY, ScoreKind.POINTWISE))
    assert relevance_curve(model, probability, "e") == OWN_LOG_ODDS
    assert relevance_curve(model, logit, "e") is None
    assert gives_relevance((Step("m", Single(2)),), {"m": probability})
