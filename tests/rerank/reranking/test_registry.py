"""Model registry: the steps of requests, completed from the settings of their models, and what is refused."""

import logging
import math
from typing import Any

import pytest

from rerank.config import FirstModel, FusionModel, IdentityModel, PERankModel, ServiceConfig
from rerank.engine.strategies import RankStage, Single, Sliding, TopDown
from rerank.errors import InvalidRequest, SelfTestFailed
from rerank.rankers.failed import FailedRanker, UnloadedRanker
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.load_models import LoadedModel, ModelLoader
from rerank.reranking.registry import ModelRegistry, load_models
from rerank.reranking.reranker import check_models
from rerank.types import FirstStageKind, RankOptions
from tests.fakes import NumberRanker


def registry() -> ModelRegistry:
    """Two models: `number`, the default one, and `identity`."""
    models = [
        IdentityModel(name="number", ranker="identity", window_size=10),
        IdentityModel(name="identity", ranker="identity", strategy="single", window_size=50),
    ]
    return ModelRegistry(models, {"number": NumberRanker(max_window_size=30), "identity": IdentityRanker()})


@pytest.mark.parametrize(("trained", "window"), [(6, 6), (40, 30)])
def test_default_window_is_that_of_the_training_up_to_what_the_model_reads(trained, window, tmp_path):
    (tmp_path / "rerank.json").write_text(f'{{"window_size": {trained}}}')
    models = [FirstModel(name="number", ranker="first", path=tmp_path)]
    (step,) = ModelRegistry(models, {"number": NumberRanker(max_window_size=30)}).resolve(RankOptions())
    assert step.strategy == Sliding(window, window // 2)


@pytest.mark.parametrize(
    ("options", "model", "strategy"),
    [
        (RankOptions(), "number", Sliding(10, 5)),
        (RankOptions(model="identity"), "identity", Single(50)),
        (RankOptions(window_size=20), "number", Sliding(20, 10)),
        (RankOptions(window_size=20, stride=5), "number", Sliding(20, 5)),
        (RankOptions(strategy="single"), "number", Single(10)),
        (RankOptions(strategy="top-down"), "number", TopDown(10)),
    ],
    ids=repr,
)
def test_options_are_completed_from_the_models_defaults(options, model, strategy):
    assert registry().resolve(options) == (RankStage(model, strategy),)


def weighted_registry(**info: Any) -> ModelRegistry:
    """Three models: `number` with a weight, `fusion`, which finds it by the list, and `identity`."""
    ranker = NumberRanker(**info)
    models = [
        PERankModel(name="number", ranker="pe-rank", window_size=20, first_stage_weight=0.5),
        FusionModel(name="fusion", ranker="fusion"),
        IdentityModel(name="identity", ranker="identity"),
    ]
    return ModelRegistry(models, {"number": ranker, "fusion": ranker, "identity": IdentityRanker()})


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        (RankOptions(), 0.5),
        (RankOptions(strategy="single"), 0.5),
        (RankOptions(first_stage_weight="neural"), 0.5),
        (RankOptions("fusion"), FirstStageKind.AUTO),
        (RankOptions("fusion", first_stage_weight=FirstStageKind.NEURAL), FirstStageKind.NEURAL),
        (RankOptions("fusion", first_stage_weight=0.75), 0.75),
        (RankOptions(first_stage_weight=0.25), 0.25),
        (RankOptions(first_stage_weight=0), 0.0),
        (RankOptions("identity", first_stage_weight=0.25), 0.0),
    ],
    ids=repr,
)
def test_number_is_the_weight_and_a_model_decides_by_a_kind(options, weight):
    (step,) = weighted_registry().resolve(options)
    assert step.weight == weight


@pytest.mark.parametrize("weight", [-0.1, 100.1, math.inf, math.nan])
def test_weight_out_of_range_is_refused_with_the_range(weight):
    message = "is not between 0 and 100; use a number in this range, or one of auto, neural"
    with pytest.raises(InvalidRequest, match=message):
        RankOptions(first_stage_weight=weight)


def cascade_registry(**failed: FailedRanker) -> ModelRegistry:
    """`number` ranks the first 10 of what `first` finds, in one window of at most 30, the most that `first` reads."""
    models = [
        IdentityModel(name="number", ranker="identity", strategy="cascade", window_size=10, preranker="first"),
        PERankModel(name="first", ranker="pe-rank"),
        IdentityModel(name="identity", ranker="identity"),
    ]
    rankers = {"number": NumberRanker(), "first": NumberRanker(max_window_size=30), "identity": IdentityRanker()}
    return ModelRegistry(models, rankers | failed)


def test_default_cascade_runs_the_defaults_of_its_preranker():
    steps = RankStage("first", Sliding(30, 15), 0.25), RankStage("number", Single(10))
    assert cascade_registry().resolve(RankOptions()) == steps
    described = cascade_registry().describe()[0].default_strategy
    assert described == "cascade(first: sliding(30/15) + 0.25 first stage > 10)"


def chain(*prerankers: str) -> ModelRegistry:
    """The models m0, m1, …: each is a cascade after the given one; "" means no cascade."""
    models = [
        IdentityModel(name=f"m{n}", ranker="identity", strategy="cascade", window_size=2 + n, preranker=preranker)
        if preranker
        else IdentityModel(name=f"m{n}", ranker="identity", strategy="single", window_size=2 + n)
        for n, preranker in enumerate(prerankers)
    ]
    return ModelRegistry(models, {model.name: NumberRanker(max_window_size=30) for model in models})


def test_preranker_may_be_a_cascade_of_two_models():
    registry = chain("m1", "m2", "")
    expected = (RankStage("m2", Single(4)), RankStage("m1", Single(3)), RankStage("m0", Single(2)))
    assert registry.resolve(RankOptions()) == expected
    assert registry.describe()[0].default_strategy == "cascade(m1: cascade(m2: single(4) > 3) > 2)"


def test_reason_of_a_model_that_is_not_served_is_logged_once(caplog):
    failed = FailedRanker("number", NumberRanker(max_window_size=30).info, "scores are not finite")
    loaded = LoadedModel(failed, failed.info)
    cascade_registry().set_loaded("number", loaded)
    assert caplog.messages == ["model number is not served: scores are not finite"]
    model = IdentityModel(name="number", ranker="identity")
    ModelRegistry([model], {}).set_loaded("number", loaded)  # the error of the start says it
    assert len(caplog.messages) == 1


def test_failed_preranker_is_a_problem_of_the_cascade():
    failed = FailedRanker("first", NumberRanker(max_window_size=30).info, "scores are not finite")
    registry = cascade_registry(first=failed)
    assert registry.describe()[0].problem == "its preranker first is not served: scores are not finite"
    with pytest.raises(SelfTestFailed, match="model 'first' is not served"):
        registry.resolve(RankOptions())
    assert registry.resolve(RankOptions(strategy="single")) == (RankStage("number", Single(10)),)
    assert [step.model for step in registry.resolve(RankOptions(on_failure="first_stage"))] == ["first", "number"]


@pytest.mark.parametrize(("model", "preranker"), [("reads", "reads-not"), ("reads-not", "reads")])
def test_instruction_of_a_cascade_must_be_read_by_the_model_that_gives_the_answer(model, preranker):
    models = [IdentityModel(name=name, ranker="identity") for name in ("reads", "reads-not")]
    rankers = {"reads": NumberRanker(reads_instruction=True), "reads-not": NumberRanker()}
    options = RankOptions(model=model, strategy="cascade", preranker=preranker)
    two = ModelRegistry(models, rankers)
    if model == "reads":
        assert two.resolve(options, "prefer medical texts")[-1].model == model
    else:
        with pytest.raises(InvalidRequest, match=r"model reads-not has no place .* use one that reads it: reads"):
            two.resolve(options, "prefer medical texts")


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        ("identity", {"preranker": ""}, "a cascade needs a preranker, and identity has none; use number or first"),
        ("identity", {"preranker": "other"}, "preranker 'other' of identity: there is no such model; use number or"),
        ("first", {"strategy": "sliding", "preranker": "identity"}, "the strategy sliding has no preranker; leave pre"),
    ],
    ids=["missing", "unknown", "other strategy"],
)
def test_preranker_of_a_request_is_refused_by_name(model, options, problem):
    with pytest.raises(InvalidRequest, match=problem):
        cascade_registry().resolve(RankOptions(model, **{"strategy": "cascade"} | options))  # type: ignore[arg-type]


def test_models_that_are_not_loaded_are_not_said_to_read_an_instruction():
    """Whether they do is known when they are loaded."""
    models = [IdentityModel(name=name, ranker="identity") for name in ("reads-not", "later")]
    registry = ModelRegistry(models, {"reads-not": NumberRanker(), "later": UnloadedRanker("later", "first")})
    assert [model.info.reads_instruction for model in registry.describe()] == [False, False]
    with pytest.raises(InvalidRequest, match=r"model reads-not has no place .* or serve one whose template has"):
        registry.resolve(RankOptions(model="reads-not"), "prefer medical texts")


def test_service_says_which_model_it_loads(caplog, encoder):
    with caplog.at_level(logging.INFO):
        load_models([IdentityModel(name="a", ranker="identity")], ModelLoader(encoder, "cpu"))
    assert caplog.messages == ["model a (identity) is being loaded"]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        settings = {"listen": "127.0.0.1:0", "models": [{"name": "a", "ranker": "identity"}]}
        check_models(ServiceConfig.model_validate(settings))
    loaded = [message.partition(" is ")[0] for message in caplog.messages if "is being loaded" in message]
    assert loaded == ["encoder sentence-transformers/all-MiniLM-L6-v2", "model a (identity)"]
