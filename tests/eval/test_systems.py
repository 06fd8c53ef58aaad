"""Systems under evaluation: models of a service with their strategies, and baselines over a service's candidates."""

from __future__ import annotations

from typing import Any

import pytest
from rerank_eval.specs import SystemSpec, parse_systems
from rerank_eval.systems import ServiceOptions, model_config, models_of, open_systems, strategy_of

from rerank import bundled
from rerank.client import RerankClient
from rerank.commands.messages import strategy_message
from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.manifest import TEMPLATE_FILE, read_manifest
from rerank.types import CandidateSource, Query, StrategyKind
from tests.serving import Served

DEFAULTS = strategy_message(None, 0, 0)


def test_own_strategy_replaces_the_shared_kind_and_keeps_its_sizes() -> None:
    shared = strategy_message(StrategyKind.CASCADE, 10, 5, preranker="a")
    assert strategy_of(SystemSpec("a", "first"), shared) == shared
    sliding = strategy_of(SystemSpec("b", "first", strategy=StrategyKind.SLIDING), shared)
    assert sliding == strategy_message(StrategyKind.SLIDING, 10, 5)


def test_preranker_without_a_cascade_is_refused() -> None:
    strategy = strategy_message(StrategyKind.SLIDING, 0, 0, preranker="a")
    with (
        pytest.raises(ConfigError, match="--preranker needs the strategy cascade"),
        open_systems([SystemSpec("a", "first")], strategy, []),
    ):
        pass


def test_first_without_a_checkpoint_is_the_bundled_one_with_its_window_size() -> None:
    manifest = read_manifest(bundled.FIRST)
    assert manifest is not None
    model = model_config(SystemSpec("a", "first"), ServiceOptions())
    assert (model["path"], model["window_size"]) == (str(bundled.FIRST), manifest.window_size)


def test_checkpoint_of_first_may_generate_with_the_template_of_its_training() -> None:
    spec = SystemSpec("a", "generation", str(bundled.FIRST))
    model = model_config(spec, ServiceOptions())
    assert model["ranker"] == "generation"
    assert model["template"] == str(bundled.FIRST / TEMPLATE_FILE)
    assert model["identifiers"] == "letters"
    assert model_config(spec, ServiceOptions(template="own.yaml"))["template"] == "own.yaml"


def test_template_and_decoding_reach_pe_rank() -> None:
    model = model_config(
        SystemSpec("a", "pe-rank", "published"), ServiceOptions(template="own.yaml", decoding="dynamic")
    )
    assert model == {
        "name": "a",
        "ranker": "pe-rank",
        "path": "published",
        "template": "own.yaml",
        "decoding": "dynamic",
    }
    assert "decoding" not in model_config(SystemSpec("b", "first", "other"), ServiceOptions(decoding="dynamic"))


def test_checkpoint_of_another_ranker_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a checkpoint of pe-rank, not of first"):
        model_config(SystemSpec("a", "first", str(bundled.PE_RANK)), ServiceOptions())


def test_order_prior_reaches_first_only() -> None:
    options = ServiceOptions(order_prior=0.2)
    assert model_config(SystemSpec("a", "first"), options)["order_prior"] == 0.2
    assert "order_prior" not in model_config(SystemSpec("b", "pe-rank"), options)


@pytest.mark.parametrize("ranker", ["identity", "generation"])
def test_shared_interpolation_is_left_out_of_rankers_without_scores(ranker: str) -> None:
    shared = strategy_message(None, 0, 0, interpolation=0.5)
    assert strategy_of(SystemSpec("a", "pe-rank"), shared) == shared
    assert strategy_of(SystemSpec("b", ranker), shared) == DEFAULTS


def test_default_is_the_default_model_of_the_target(service: Served) -> None:
    with open_systems(parse_systems(["default"], [], ""), DEFAULTS, [], targets=[service.address]) as systems:
        assert systems["default"].fingerprint["ranker"] == "pe-rank"


def test_service_of_the_default_system_has_its_models_first_and_identity() -> None:
    own = ServiceConfig().models
    specs = parse_systems(["default", own[0].name], ["mine=first", "none=identity"], "")
    models = models_of(specs, ServiceOptions())
    assert models[: len(own)] == list(own)
    assert [model["name"] for model in models[len(own) :]] == ["mine", "none"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("first=first:other", ServiceOptions()),
        ("first=pe-rank", ServiceOptions()),
        ("first=first", ServiceOptions(order_prior=0.1)),
    ],
)
def test_system_that_would_replace_a_model_of_the_default_system_is_refused(
    system: str, options: ServiceOptions
) -> None:
    with pytest.raises(ConfigError, match="first is a model of the default system; rename"):
        models_of(parse_systems(["default"], [system], ""), options)


def test_default_takes_no_checkpoint() -> None:
    with pytest.raises(ConfigError, match="default is the service's own model"):
        parse_systems([], ["a=default:folder"], "")


def test_model_that_the_target_lacks_is_refused(service: Served) -> None:
    specs = parse_systems([], ["a=first:missing"], "")
    with (
        pytest.raises(ConfigError, match="no model 'missing'; it has pe-rank, identity, number"),
        open_systems(specs, DEFAULTS, [], targets=[service.address]),
    ):
        pass


def test_fingerprint_holds_the_model_and_the_index_of_the_service(service: Served) -> None:
    specs = parse_systems([], ["a=first:number", "b=cosine"], "")
    with open_systems(specs, DEFAULTS, [], targets=[service.address]) as systems:
        assert systems["a"].fingerprint["ranker"] == "number"
        assert systems["a"].fingerprint["model_revision"] == "r1"
        assert systems["a"].fingerprint["searched"] == systems["b"].fingerprint["searched"] != {}


def test_baseline_reranks_what_the_service_retrieves(service: Served) -> None:
    """The cosine over the dense retriever's candidates gives the dense retriever's order."""
    with open_systems(parse_systems(["cosine"], [], ""), DEFAULTS, [], targets=[service.address]) as systems:
        ranking = systems["cosine"].search(Query("the pull of the moon"), first_stage="FIRST_STAGE_DENSE", depth=12)
    assert ranking.positions == tuple(range(12))


def test_slow_models_are_given_time(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts_s: list[float] = []
    call = RerankClient._call

    def recorded(self: RerankClient, method: Any, request: Any, timeout_s: float) -> Any:
        timeouts_s.append(timeout_s)
        return call(self, method, request, timeout_s)

    with open_systems(parse_systems(["default", "cosine"], [], ""), DEFAULTS, [], targets=[service.address]) as systems:
        monkeypatch.setattr(RerankClient, "_call", recorded)
        systems["default"].rerank(Query("q"), [CandidateSource("a", "1"), CandidateSource("b", "2")])
        for system in systems.values():
            system.search(Query("q"), first_stage="FIRST_STAGE_BM25", depth=2)
    assert min(timeouts_s) >= 3600
