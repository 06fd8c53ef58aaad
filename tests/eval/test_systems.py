"""Systems as the command line names them."""

from __future__ import annotations

import pytest
from rerank_eval.systems import Spec, model_of, open_systems, parse_systems, schedule_of

from rerank import bundled
from rerank.commands.cli import StrategyKind, strategy_message
from rerank.errors import ConfigError
from rerank.manifest import TEMPLATE_FILE, read_manifest
from rerank.types import Query
from tests.serving import Served

DEFAULTS = strategy_message(None, 0, 0)


def test_without_any_it_is_pe_rank() -> None:
    assert parse_systems([], [], "") == [Spec("pe-rank", "pe-rank")]


def test_a_model_belongs_to_the_one_ranker() -> None:
    assert parse_systems(["first"], [], "folder") == [Spec("first", "first", "folder")]
    assert parse_systems([], [], "folder") == [Spec("pe-rank", "pe-rank", "folder")]


def test_systems_have_names_and_paths() -> None:
    """A path may hold a colon and an equals sign."""
    assert parse_systems([], ["mine=first:C:/a=b", "base=identity"], "") == [
        Spec("mine", "first", "C:/a=b"),
        Spec("base", "identity"),
    ]


def test_a_system_may_have_its_own_strategy() -> None:
    assert parse_systems([], ["a=first/top-down:some/folder", "b=first/single"], "") == [
        Spec("a", "first", "some/folder", StrategyKind.TOP_DOWN),
        Spec("b", "first", "", StrategyKind.SINGLE),
    ]


def test_own_strategy_replaces_the_shared_one_and_keeps_its_widths() -> None:
    shared = strategy_message(StrategyKind.CASCADE, 10, 5, preranker="a")
    assert schedule_of(Spec("a", "first"), shared) == shared
    own = schedule_of(Spec("b", "first", strategy=StrategyKind.SLIDING), shared)
    assert own == strategy_message(StrategyKind.SLIDING, 10, 5)


def test_first_model_without_a_cascade_is_refused() -> None:
    schedule = strategy_message(StrategyKind.SLIDING, 0, 0, preranker="a")
    with (
        pytest.raises(ConfigError, match="no system has that strategy"),
        open_systems([Spec("a", "first")], "", "", [], schedule),
    ):
        pass


def test_first_without_a_checkpoint_is_the_one_that_ships_in_its_own_windows() -> None:
    manifest = read_manifest(bundled.FIRST)
    assert manifest is not None
    model = model_of(Spec("a", "first"), "")
    assert (model["path"], model["window_size"]) == (str(bundled.FIRST), manifest.window_size)


def test_checkpoint_of_first_may_write_the_order_with_the_prompt_of_its_training() -> None:
    model = model_of(Spec("a", "generation", str(bundled.FIRST)), "")
    assert model["ranker"] == "generation"
    assert model["template"] == str(bundled.FIRST / TEMPLATE_FILE)
    assert model["identifiers"] == "letters"
    assert model_of(Spec("a", "generation", str(bundled.FIRST)), "own.yaml")["template"] == "own.yaml"


def test_checkpoint_of_another_ranker_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a checkpoint of pe-rank, not of first"):
        model_of(Spec("a", "first", str(bundled.PE_RANK)), "")


@pytest.mark.parametrize(
    ("rankers", "systems", "model", "message"),
    [
        (["best"], [], "", "'best' is none of identity"),
        (["identity", "identity"], [], "", "give each another name"),
        (["first", "generation"], [], "folder", "--model belongs to one"),
        ([], ["first:folder"], "", "expected NAME=RANKER"),
        ([], ["../up=identity"], "", "would name a folder"),
        ([], ["=identity"], "", "would name a folder"),
        (["cross-encoder"], [], "", "needs its model"),
        ([], ["a=first/up"], "", "strategy 'up' is none of single, sliding"),
        ([], ["a=first/"], "", "strategy '' is none of"),
        ([], ["a=cosine/sliding"], "", "cosine has no windows"),
    ],
)
def test_what_cannot_be_is_refused(rankers: list[str], systems: list[str], model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_systems(rankers, systems, model)


def test_model_that_the_target_lacks_is_refused(service: Served) -> None:
    specs = parse_systems([], ["a=first:missing"], "")
    with (
        pytest.raises(ConfigError, match="no model 'missing'; it has pe-rank, identity, number"),
        open_systems(specs, "", service.address, [], DEFAULTS),
    ):
        pass


def test_settings_hold_what_the_service_says_of_the_model(service: Served) -> None:
    specs = parse_systems([], ["a=first:number", "b=cosine"], "")
    with open_systems(specs, "", service.address, [], DEFAULTS) as systems:
        assert systems["a"].settings["ranker"] == "number"
        assert systems["a"].settings["model_revision"] == "r1"
        assert systems["a"].settings["searched"] == systems["b"].settings["searched"] != {}


def test_a_baseline_searches_what_the_service_finds(service: Served) -> None:
    """The cosine over the dense retriever's candidates is the dense retriever's order."""
    with open_systems(parse_systems(["cosine"], [], ""), "", service.address, [], DEFAULTS) as systems:
        reply = systems["cosine"].search(Query("the pull of the moon"), first_stage="FIRST_STAGE_DENSE", depth=12)
    assert reply.positions == tuple(range(12))
