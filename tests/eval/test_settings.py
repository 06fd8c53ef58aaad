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


@pytest.mark.parametrize("loads", [",", "0", "1,1", "-1", "many"])
def test_invalid_loads_are_refused(loads: str) -> None:
    with pytest.raises(ConfigError, match="expected different numbers above 0"):
        _ = EvaluationSettings(out=Path("o"), concurrency=loads).loads
