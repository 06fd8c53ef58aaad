"""The benchmark runs with tiny models and prints figures; the figures themselves are not checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from scripts.bench.__main__ import app
from scripts.bench.precision import WAYS, measure_precision

GROUPS = ("first", "pe", "e2rank", "prompts")
FIGURES = {
    *(f"e2rank_vs_{other}, {n}" for other in ("first", "pe_rank", "new texts") for n in (20, 100)),
    *(f"pe_{what}, {n}" for what in ("dynamic_vs_generate", "one_step_vs_text twin") for n in (1, 8)),
    *(
        f"{what}_vs_tokenizing once, {kind}"
        for what in ("prompts", "service")
        for kind in ("48 tokens", "whole passages")
    ),
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
def test_quick_benchmark_prints_figures(own_threads: None) -> None:
    result = CliRunner().invoke(app, ["--quick", "--only", ",".join(GROUPS)])
    assert result.exit_code == 0, result.output
    rows = {line[:45].strip(): list(map(float, line[45:].split())) for line in result.stdout.splitlines()}
    assert rows.keys() >= FIGURES
    for name in FIGURES:
        median, low, high = rows[name]
        assert low <= median <= high < math.inf


@pytest.mark.slow
def test_precisions_are_compared_with_float32(tmp_path: Path) -> None:
    texts = ["Bread needs yeast.", "Robins sense the magnetic field.", "A violin has four strings."]
    candidates = [{"docid": str(place), "score": -place, "doc": {"contents": text}} for place, text in enumerate(texts)]
    query = {"text": "how do birds find their way", "qid": 1}
    (tmp_path / "requests.jsonl").write_text(json.dumps({"query": query, "candidates": candidates}), encoding="utf-8")
    values = measure_precision(torch.device("cpu"), tmp_path / "requests.jsonl", repeats=1)
    assert {name for name in values if "ms a window" in name} == {f"{way}: ms a window" for way in WAYS}
    assert [row for name, row in values.items() if "tau" in name] == [[1.0], [1.0]]
