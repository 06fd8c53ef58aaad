"""The attack script: its arguments, its figures, and one attack on a service process."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rerank.errors import ConfigError

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def attack(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script's module, imported as by `python scripts/attack.py`."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("attack")


def test_unknown_attack_is_refused(attack: Any) -> None:
    result = CliRunner().invoke(attack.app, ["--attack", "nothing,siege"])
    assert isinstance(result.exception, ConfigError)
    assert "--attack siege: choose all, or some of " in str(result.exception)
    assert "nothing,cancelled-encoding," in str(result.exception)


def test_row_has_a_cell_for_each_column(attack: Any) -> None:
    latency_ms = {"identity": [1.0], "first": [20.4], "health": [0.6]}
    report = attack.Report(
        latency_ms, unanswered=1, growth_mb=12.3, log_mb_per_min=0.456, calls=Counter(OK=3, CANCELLED=1)
    )
    row = report.row("siege")
    assert row == "| siege | 1 | 20 | 1 | 1 | 12 | 0.46 | 1 CANCELLED, 3 OK |"
    assert row.count("|") == attack.HEADER.count("|")


@pytest.mark.slow
def test_table_has_a_row_per_attack(attack: Any) -> None:
    result = CliRunner().invoke(attack.app, ["--attack", "nothing", "--seconds", "1"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[2].startswith("| nothing | ")
