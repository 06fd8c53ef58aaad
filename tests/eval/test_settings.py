"""Settings of the evaluation commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_eval.settings import EvaluationSettings, TrecDLSettings

from rerank.errors import ConfigError


def test_settings_are_written_by_name() -> None:
    settings = TrecDLSettings(out=Path("o"), requests=[], ranker=["first"], depth=3)
    expected = {"out": "o", "ranker": "first", "depth": "3", "template": "", "strategy": "", "seed": "0"}
    assert expected.items() <= settings.as_strings().items()


def test_loads_are_parsed() -> None:
    assert EvaluationSettings(out=Path("o"), concurrency="1, 8,32").loads == [1, 8, 32]


@pytest.mark.parametrize(("target", "load"), [([], 1), (["a:1"], 1), (["a:1, b:1", "c:1"], 3)])
def test_load_is_by_default_one_query_for_each_service(target: list[str], load: int) -> None:
    assert EvaluationSettings(out=Path("o"), target=target).loads == [load]
    assert EvaluationSettings(out=Path("o"), target=target, concurrency="2").loads == [2]


def test_address_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="--target a:1, b:1, a:1: an address is given twice"):
        _ = EvaluationSettings(out=Path("o"), target=["a:1,b:1", "a:1"]).targets


@pytest.mark.parametrize("loads", [",", "0", "1,1", "-1", "many"])
def test_invalid_loads_are_refused(loads: str) -> None:
    with pytest.raises(ConfigError, match="expected different numbers above 0"):
        _ = EvaluationSettings(out=Path("o"), concurrency=loads).loads
