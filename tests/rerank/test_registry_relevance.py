"""Relevance by the settings of models: which of them give it, and which requests for it are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rerank.checkpoints.relevance import RelevanceCurve
from rerank.config import FirstModel, IdentityModel
from rerank.errors import InvalidRequest
from rerank.reranking.registry import ModelRegistry
from rerank.types import RankOptions
from tests.fakes import NumberRanker

OF_COSINE = (RelevanceCurve(signal="cosine", intercept=-2.0, slope=6.0, encoder_sha256="e"),)


def registry() -> ModelRegistry:
    models = [
        FirstModel(name="last", ranker="first", strategy="cascade", preranker="vectors", window_size=10),
        IdentityModel(name="vectors", ranker="identity", window_size=10),
        IdentityModel(name="plain", ranker="identity", window_size=10),
    ]
    last, vectors = NumberRanker(), NumberRanker()
    last.info = replace(last.info, relevance=OF_COSINE)
    vectors.info = replace(vectors.info, signals={"cosine": "e"})
    return ModelRegistry(models, {"last": last, "vectors": vectors, "plain": NumberRanker()})


def test_models_say_whether_they_give_relevance_by_default() -> None:
    assert [model.gives_relevance for model in registry().describe()] == [True, False, False]


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, math.inf])
def test_min_relevance_that_is_no_probability_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest, match=r"is not between 0 and 1; use a probability, such as 0\.5") as caught:
        registry().resolve(RankOptions(min_relevance=value))
    assert caught.value.field == "min_relevance"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RankOptions("plain"), r"model plain gives no relevance; use a model that gives it \(last\), or leave it out"),
        (
            RankOptions(strategy="sliding"),
            "sliding.* gives no relevance, as no step computes its signal; leave strategy and",
        ),
        (RankOptions(preranker="plain"), "cascade.* gives no relevance, as no step computes its signal"),
    ],
)
def test_min_relevance_without_relevance_is_refused_with_the_way_out(options: RankOptions, message: str) -> None:
    registry().resolve(options)
    with pytest.raises(InvalidRequest, match=message) as caught:
        registry().resolve(replace(options, min_relevance=0.5))
    assert caught.value.field == "min_relevance"


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_min_relevance_of_a_model_with_relevance_is_accepted(value: float) -> None:
    assert registry().resolve(RankOptions(min_relevance=value)) == registry().resolve(RankOptions())
