"""Systems as the command line names them."""

from __future__ import annotations

import pytest
from rerank_eval.specs import SystemSpec, parse_systems

from rerank.errors import ConfigError
from rerank.types import StrategyKind


def test_default_system_is_pe_rank() -> None:
    assert parse_systems([], []) == [SystemSpec("pe-rank", "pe-rank")]


def test_systems_have_names_and_paths() -> None:
    """A path may contain a colon and an equals sign."""
    assert parse_systems([], ["mine=first:C:/a=b", "base=identity"]) == [
        SystemSpec("mine", "first", "C:/a=b"),
        SystemSpec("base", "identity"),
    ]


@pytest.mark.parametrize("spelling", ["top-down", "top_down"])
def test_system_may_have_its_own_strategy(spelling: str) -> None:
    assert parse_systems([], [f"a=first/{spelling}:some/folder", "b=first/single"]) == [
        SystemSpec("a", "first", "some/folder", StrategyKind.TOP_DOWN),
        SystemSpec("b", "first", "", StrategyKind.SINGLE),
    ]


def test_ranker_may_have_its_path() -> None:
    assert parse_systems(["cross-encoder:some/folder"], []) == [
        SystemSpec("cross-encoder", "cross-encoder", "some/folder")
    ]


def test_cascade_is_a_chain_of_models_of_which_the_last_has_the_name() -> None:
    (spec,) = parse_systems([], ["it=pe-rank > cross-encoder:a@b/ce@100 > first:C:/x@20"])
    first = SystemSpec("it.1", "pe-rank")
    middle = SystemSpec("it.2", "cross-encoder", "a@b/ce", window_size=100, preranker=first)
    assert spec == SystemSpec("it", "first", "C:/x", window_size=20, preranker=middle)
    assert spec.stages == [spec, middle, first]
    assert spec.cascade_settings == {"strategy": StrategyKind.CASCADE, "window_size": 20, "preranker": "it.2"}
    assert first.cascade_settings == {}


@pytest.mark.parametrize(
    ("rankers", "systems", "message"),
    [
        (["best"], [], "'best' is none of default, identity"),
        (["identity", "identity"], [], "two have the same name"),
        (["default:folder"], [], "default is the service's own model; name the ranker of folder"),
        ([], ["first:folder"], "expected NAME=RANKER"),
        ([], ["../up=identity"], "would name a folder"),
        ([], ["=identity"], "would name a folder"),
        (["cross-encoder"], [], "needs its model"),
        ([], ["a=pe-rank>first"], "a cascade is two or three models, each after the first with the number"),
        ([], ["a=pe-rank>first@1"], "at least 2"),
        ([], ["a=pe-rank>@20"], "a cascade is two or three models"),
        ([], ["a=pe-rank>first@x"], "a cascade is two or three models"),
        ([], ["a=pe-rank>first@9>first@8>first@7"], "a cascade is two or three models"),
        ([], ["a=pe-rank>cross-encoder@20"], "needs its model"),
        ([], ["a=oracle>first@20"], "oracle runs in the evaluation, and the models of a cascade in the service"),
        ([], ["a=default>first@20"], "default is a cascade already"),
        ([], ["a=first/up"], "strategy 'up' is none of single, sliding"),
        ([], ["a=first/"], "strategy '' is none of"),
        ([], ["a=cosine/sliding"], "takes no strategy; leave out /sliding"),
    ],
)
def test_invalid_systems_are_refused(rankers: list[str], systems: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_systems(rankers, systems)
