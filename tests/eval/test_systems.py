"""Systems as the command line names them."""

from __future__ import annotations

import pytest

from eval.systems import Spec, open_systems, parse_systems
from rerank.cli import strategy_message
from rerank.errors import ConfigError
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
