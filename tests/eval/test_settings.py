"""Settings of the evaluation commands."""

from __future__ import annotations

from pathlib import Path

from rerank_eval.settings import TrecDLSettings


def test_settings_are_written_by_name() -> None:
    settings = TrecDLSettings(out=Path("o"), requests=[], ranker=["first"], depth=3)
    expected = {"out": "o", "ranker": "first", "depth": "3", "template": "", "strategy": "", "seed": "0"}
    assert expected.items() <= settings.as_strings().items()
