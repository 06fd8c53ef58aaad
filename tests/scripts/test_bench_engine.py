"""The benchmark runs with tiny models and writes figures and a plot; the figures themselves are not checked."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rerank.errors import ConfigError

SCRIPTS = Path(__file__).parents[2] / "scripts"
#: One group of the rankers, which compares permutations too, and one of the engine.
GROUPS = ("pe", "growth")
FIGURES = {
    *(f"pe_dynamic_vs_{other}, {n}" for other in ("generate", "text twin") for n in (1, 8)),
    *(f"pe_one_step_vs_text twin, {n}" for n in (1, 8)),
    *(f"growth, {n} candidates, pe" for n in (20, 100)),
    *(f"growth, {n} words a passage, first" for n in (4, 8)),
    *(f"growth, {n} requests at once, each" for n in (1, 10, 100)),
}


@pytest.fixture
def bench_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script's module, imported as by `python scripts/bench_engine.py`."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    threads = torch.get_num_threads()
    yield importlib.import_module("bench_engine")
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_quick_benchmark_writes_figures_and_a_plot(bench_engine: Any, tmp_path: Path) -> None:
    out, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    out.write_text('{"earlier": {"median": 1, "min": 1, "max": 1, "unit": "times"}}', encoding="utf-8")
    arguments = ["--quick", "--only", ",".join(GROUPS), "--out", str(out), "--plot-to", str(plot)]
    result = CliRunner().invoke(bench_engine.app, arguments)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures.keys() == {"earlier", *FIGURES}
    for name, figure in figures.items():
        assert figure.keys() == {"median", "min", "max", "unit"}
        assert figure["unit"] == ("ms" if name.startswith("growth") else "times")
        assert figure["min"] <= figure["median"] <= figure["max"]
        assert math.isfinite(figure["max"])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_unknown_group_is_refused(bench_engine: Any) -> None:
    result = CliRunner().invoke(bench_engine.app, ["--only", "pe,speed"])
    assert isinstance(result.exception, ConfigError)
    assert "--only speed: choose from first,packed,pe," in str(result.exception)
