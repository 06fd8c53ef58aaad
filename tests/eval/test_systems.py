"""Systems under evaluation: models of a service with their strategies, and baselines over a service's candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from rerank_eval.settings import EvaluationSettings
from rerank_eval.specs import SystemSpec, parse_systems
from rerank_eval.systems import (
    Oracle,
    _fixed_settings,
    model_config,
    models_of,
    open_systems,
    strategy_of,
    with_precision,
)

from rerank.checkpoints import bundled
from rerank.checkpoints.manifest import TEMPLATE_FILE, read_manifest
from rerank.client import RerankClient
from rerank.config import CheckpointModel, FusionModel, ModelConfig, ServiceConfig
from rerank.config.models import reads_sparse
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.rankers.base import rank_windows
from rerank.rankers.fusion import FusionRanker
from rerank.readers.qrels import Qrel
from rerank.retrieval.hybrid import z_scores
from rerank.types import CandidateSource, FirstStage, FirstStageKind, Passage, Query, StrategyKind, Window
from tests.serving import Served


def flags(**given: Any) -> EvaluationSettings:
    return EvaluationSettings(out=Path("out"), **given)


def test_own_strategy_replaces_the_shared_kind_and_keeps_its_sizes() -> None:
    settings = flags(strategy=StrategyKind.TOP_DOWN, window_size=10, stride=5)
    sizes = {"window_size": 10, "stride": 5}
    assert strategy_of(SystemSpec("a", "first"), settings) == {"kind": StrategyKind.TOP_DOWN, **sizes}
    sliding = strategy_of(SystemSpec("b", "first", strategy=StrategyKind.SLIDING), settings)
    assert sliding == {"kind": StrategyKind.SLIDING, **sizes}


def test_cascade_starts_each_of_its_models_and_asks_for_the_default_of_the_last() -> None:
    (spec,) = parse_systems([], ["it=pe-rank>cross-encoder:ce@100>first@20"])
    assert strategy_of(spec, flags(strategy=StrategyKind.SLIDING, window_size=10, first_stage_weight=0.5)) == {}
    last, middle, first = (TypeAdapter(ModelConfig).validate_python(model) for model in models_of([spec], flags()))
    assert [model.name for model in (last, middle, first)] == ["it", "it.2", "it.1"]
    assert [(model.preranker, model.window_size) for model in (last, middle)] == [("it.2", 20), ("it.1", 100)]
    assert {last.strategy, middle.strategy} == {StrategyKind.CASCADE} != {first.strategy}


def test_cascade_needs_a_service_that_the_evaluation_starts() -> None:
    specs = parse_systems([], ["it=pe-rank>first@20"])
    with (
        pytest.raises(ConfigError, match="with --target, name a model of the service"),
        open_systems(specs, flags(target="localhost:1"), []),
    ):
        pass


def test_first_without_a_checkpoint_is_the_bundled_one_with_its_window_size() -> None:
    manifest = read_manifest(bundled.FIRST)
    assert manifest is not None
    model = TypeAdapter(ModelConfig).validate_python(model_config(SystemSpec("a", "first"), flags()))
    assert (model.path, model.window_size) == (bundled.FIRST, manifest.window_size)


def test_checkpoint_of_first_may_generate_with_the_template_of_its_training() -> None:
    spec = SystemSpec("a", "generation", str(bundled.FIRST))
    model = model_config(spec, flags())
    assert model["ranker"] == "generation"
    assert model["template"] == str(bundled.FIRST / TEMPLATE_FILE)
    assert model["identifiers"] == "letters"
    assert model_config(spec, flags(template="own.yaml"))["template"] == "own.yaml"


@pytest.mark.parametrize(("ranker", "has_it"), [("identity", False), ("pe-rank", True), ("generation", True)])
def test_shared_template_reaches_the_rankers_that_have_one(ranker: str, has_it: bool) -> None:
    model = model_config(SystemSpec("a", ranker, "published"), flags(template="own.yaml"))
    assert model == {"name": "a", "ranker": ranker, "path": "published"} | ({"template": "own.yaml"} if has_it else {})


def test_checkpoint_of_another_ranker_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a checkpoint of pe-rank, not of first"):
        model_config(SystemSpec("a", "first", str(bundled.PE_RANK)), flags())


def test_default_is_the_default_model_of_the_target(service: Served) -> None:
    with open_systems(parse_systems(["default"], []), flags(target=service.address), []) as systems:
        assert systems["default"].fingerprint["ranker"] == "pe-rank"


def test_service_of_the_default_system_has_its_models_first_and_identity() -> None:
    own = ServiceConfig().models
    specs = parse_systems(["default", own[1].name], ["mine=first", "none=identity"])
    models = models_of(specs, flags())
    assert models[: len(own)] == list(own)
    assert [model["name"] for model in models[len(own) :]] == ["mine", "none"]  # type: ignore[index]
    assert {"name": "identity", "ranker": "identity"} in models_of(parse_systems(["first"], []), flags(), True)


@pytest.mark.parametrize(
    ("system", "settings"),
    [("pe-rank=pe-rank:other", flags()), ("identity=pe-rank", flags()), ("pe-rank=default", flags())],
)
def test_system_that_would_replace_a_model_of_the_default_system_is_refused(
    system: str, settings: EvaluationSettings
) -> None:
    with pytest.raises(ConfigError, match="is a model of the default system; rename"):
        models_of(parse_systems(["default"], [system]), settings)


def test_fingerprint_holds_the_model_and_the_index_of_the_service(service: Served) -> None:
    specs = parse_systems([], ["a=first:number", "b=oracle"])
    with open_systems(specs, flags(target=service.address), []) as systems:
        assert systems["a"].fingerprint["ranker"] == "number"
        assert systems["a"].fingerprint["model_revision"] == "r1"
        assert systems["a"].fingerprint["searched"] == systems["b"].fingerprint["searched"] != {}


def test_oracle_sorts_what_the_service_retrieves(service: Served) -> None:
    query, options = Query("the pull of the moon", "q"), {"first_stage": FirstStage.DENSE, "depth": 12}
    with open_systems(parse_systems(["oracle"], []), flags(target=service.address), []) as systems:
        found = systems["oracle"].search(query, **options)
    qrels = [Qrel("q", found.doc_ids[-1], 1)]
    with open_systems(parse_systems(["oracle"], []), flags(target=service.address), qrels) as systems:
        assert systems["oracle"].search(query, **options).positions == (11, *range(11))


def test_oracle_sorts_by_judgements_and_keeps_the_order_of_ties() -> None:
    qrels = [Qrel("q", "d3", 3), Qrel("q", "d1", 1), Qrel("q", "d0", 0), Qrel("other", "d2", 3)]
    ranking = Oracle(qrels).rerank(Query("a query", "q"), [CandidateSource(f"d{place}") for place in range(4)])
    assert ranking.doc_ids == ("d3", "d1", "d0", "d2")
    assert ranking.scores == (4.0, 3.0, 2.0, 1.0)
    assert Oracle(qrels).fingerprint != Oracle(qrels[:2]).fingerprint
    assert Oracle([]).rerank(Query("a query", "q"), []).doc_ids == ()


@pytest.mark.parametrize("ranker", ["cosine", "z-score"])
def test_shared_strategy_does_not_reach_a_baseline(ranker: str) -> None:
    settings = flags(strategy=StrategyKind.SLIDING, window_size=10, first_stage_weight=0.5)
    assert strategy_of(SystemSpec("a", ranker), settings) == {}


@pytest.mark.parametrize(("ranker", "weight"), [("cosine", 0.0), ("z-score", 0.3)])
def test_baseline_is_the_sum_of_z_scores_of_its_name(ranker: str, weight: float, encoder: Encoder) -> None:
    texts = ["A flea lives a year.", "Deserts are dry.", "Cats have fleas.", "Whales live in the sea."]
    model = TypeAdapter(ModelConfig).validate_python(model_config(SystemSpec("a", ranker), flags()))
    assert isinstance(model, FusionModel)
    ranking = FusionRanker(model, encoder, None)
    query, first_stage = Query("how long does a flea live"), (10.0, 9.0, 8.0, 7.0)
    prepared = ranking.prepare(query, [Passage(f"d{place}", text) for place, text in enumerate(texts)])
    of_first_stage = model.weight_for(FirstStageKind.LEXICAL)
    window = Window(prepared.query, prepared.passages, first_stage=first_stage, first_stage_weight=of_first_stage)
    (ranked,) = rank_windows(ranking, [window])
    cosines = encoder.encode_passages(texts, "auto") @ encoder.encode_queries([query.text])[0]
    expected = weight * z_scores(first_stage) + z_scores(cosines)
    assert ranked.scores == pytest.approx(expected.tolist(), abs=1e-4)
    assert not reads_sparse(model)


def test_baselines_under_one_name_have_different_fingerprints() -> None:
    """A folder of the cosine's results is not resumed for the z-score."""
    fixed = [_fixed_settings(SystemSpec("a", ranker), flags()) for ranker in ("cosine", "z-score", "pe-rank")]
    assert fixed[0] != fixed[1] != fixed[2] == {}


def test_slow_models_are_given_time(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts_s: list[float] = []
    call = RerankClient._call

    def recorded(self: RerankClient, method: Any, request: Any, timeout_s: float) -> Any:
        timeouts_s.append(timeout_s)
        return call(self, method, request, timeout_s)

    specs = parse_systems(["default", "oracle"], [])
    with open_systems(specs, flags(target=service.address), []) as systems:
        monkeypatch.setattr(RerankClient, "_call", recorded)
        systems["default"].rerank(Query("q"), [CandidateSource("a", "1"), CandidateSource("b", "2")])
        for system in systems.values():
            system.search(Query("q"), first_stage=FirstStage.BM25, depth=2)
    assert min(timeouts_s) >= 3600


def test_started_service_computes_in_the_given_precision() -> None:
    before, after = ServiceConfig(), with_precision(ServiceConfig(), "bfloat16")
    assert {model.precision for model in after.models if isinstance(model, CheckpointModel)} == {"bfloat16"}
    assert [model.name for model in after.models] == [model.name for model in before.models]
    assert flags().precision == "float32"  # figures do not depend on the processor
