"""The benchmark of telemetry: it starts the services that it names, and prints a ratio for each."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.slow
def test_table_has_a_ratio_for_each_kind_of_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    bench = importlib.import_module("bench_telemetry")
    result = CliRunner().invoke(bench.app, ["--requests", "20", "--rounds", "1"])
    assert result.exit_code == 0, result.output
    rows = [row.split("|")[1:-1] for row in result.output.splitlines()[2:]]
    assert [row[0].strip() for row in rows] == ["off", "metrics", "metrics and traces"]
    assert [float(cell) for cell in rows[0][2:]] == [1.0, 1.0, 1.0]
    assert all(float(row[1]) > 0 for row in rows)
