"""The benchmark runs with tiny models and prints figures; the figures themselves are not checked."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from typer.testing import CliRunner

from scripts.bench.__main__ import app

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
