"""The benchmark runs with tiny models and writes figures; the figures themselves are not checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from scripts.bench.__main__ import app

GROUPS = ("first", "e2rank")
FIGURES = {
    *(f"e2rank_vs_{other}, {n}" for other in ("first", "pe_rank", "new texts") for n in (20, 100)),
    "first_vs_generating the permutation",
    "first_vs_generate one token",
    "first_vs_all-position logits",
}


@pytest.fixture
def own_threads() -> Iterator[None]:
    """Keeps the number of torch threads, which the benchmark sets."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_quick_benchmark_writes_figures(own_threads: None, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    out.write_text('{"earlier": {"median": 1, "min": 1, "max": 1, "unit": "times"}}', encoding="utf-8")
    arguments = ["--quick", "--only", ",".join(GROUPS), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures.keys() == {"earlier", *FIGURES}
    for figure in figures.values():
        assert figure.keys() == {"median", "min", "max", "unit"}
        assert figure["unit"] == "times"
        assert figure["min"] <= figure["median"] <= figure["max"]
        assert math.isfinite(figure["max"])
