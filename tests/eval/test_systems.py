"""Systems under evaluation: models of a service with their strategies, and baselines over a service's candidates."""

from __future__ import annotations

import pytest
from rerank_eval.specs import SystemSpec, parse_systems
from rerank_eval.systems import model_config, open_systems, strategy_of

from rerank import bundled
from rerank.commands.messages import strategy_message
from rerank.errors import ConfigError
from rerank.manifest import TEMPLATE_FILE, read_manifest
from rerank.types import Query, StrategyKind
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
    model = model_config(SystemSpec("a", "first"), "")
    assert (model["path"], model["window_size"]) == (str(bundled.FIRST), manifest.window_size)


def test_checkpoint_of_first_may_generate_with_the_template_of_its_training() -> None:
    spec = SystemSpec("a", "generation", str(bundled.FIRST))
    model = model_config(spec, "")
    assert model["ranker"] == "generation"
    assert model["template"] == str(bundled.FIRST / TEMPLATE_FILE)
    assert model["identifiers"] == "letters"
    assert model_config(spec, "own.yaml")["template"] == "own.yaml"


def test_template_and_decoding_reach_pe_rank() -> None:
    model = model_config(SystemSpec("a", "pe-rank", "published"), "own.yaml", "dynamic")
    assert model == {
        "name": "a",
        "ranker": "pe-rank",
        "path": "published",
        "template": "own.yaml",
        "decoding": "dynamic",
    }
    assert "decoding" not in model_config(SystemSpec("b", "first", "other"), "", "dynamic")


def test_checkpoint_of_another_ranker_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a checkpoint of pe-rank, not of first"):
        model_config(SystemSpec("a", "first", str(bundled.PE_RANK)), "")


def test_model_that_the_target_lacks_is_refused(service: Served) -> None:
    specs = parse_systems([], ["a=first:missing"], "")
    with (
        pytest.raises(ConfigError, match="no model 'missing'; it has pe-rank, identity, number"),
        open_systems(specs, DEFAULTS, [], target=service.address),
    ):
        pass


def test_fingerprint_holds_the_model_and_the_index_of_the_service(service: Served) -> None:
    specs = parse_systems([], ["a=first:number", "b=cosine"], "")
    with open_systems(specs, DEFAULTS, [], target=service.address) as systems:
        assert systems["a"].fingerprint["ranker"] == "number"
        assert systems["a"].fingerprint["model_revision"] == "r1"
        assert systems["a"].fingerprint["searched"] == systems["b"].fingerprint["searched"] != {}


def test_baseline_reranks_what_the_service_retrieves(service: Served) -> None:
    """The cosine over the dense retriever's candidates gives the dense retriever's order."""
    with open_systems(parse_systems(["cosine"], [], ""), DEFAULTS, [], target=service.address) as systems:
        ranking = systems["cosine"].search(Query("the pull of the moon"), first_stage="FIRST_STAGE_DENSE", depth=12)
    assert ranking.positions == tuple(range(12))
