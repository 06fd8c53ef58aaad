"""The benchmark runs with tiny models and prints figures; the figures themselves are not checked."""

import json
import math
from collections.abc import Iterator

import pytest
import torch
from typer.testing import CliRunner

from scripts.bench.__main__ import app
from scripts.bench.shapes import kernels, measure_shapes
from scripts.bench.workload import Workload

GROUPS = ("first", "pe", "e2rank", "prompts", "shapes", "kernels")
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
    *("windows", "lengths of windows", "lengths of windows on a GPU", "more tokens by padding, %"),
    *("kernels a layer, eager", "kernels a layer, compiled"),
}


@pytest.fixture
def own_threads() -> Iterator[None]:
    """Keeps the number of torch threads, which the benchmark sets."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_quick_benchmark_prints_figures(own_threads):
    result = CliRunner().invoke(app, ["--quick", "--only", ",".join(GROUPS)])
    assert result.exit_code == 0, result.output
    rows = {line[:45].strip(): list(map(float, line[45:].split())) for line in result.stdout.splitlines()}
    assert rows.keys() >= FIGURES
    for name in FIGURES:
        median, low, high = rows[name]
        assert low <= median <= high < math.inf
    assert rows["kernels a layer, compiled"][0] < rows["kernels a layer, eager"][0] / 2


def test_kernels_are_operators_that_compute():
    matrix = torch.ones(4, 4)
    assert kernels(lambda: (matrix @ matrix).t()[:2] + 1.0) == 2
    assert kernels(lambda: torch.nn.functional.linear(matrix, matrix)) == 1
    assert kernels(lambda: matrix.t()) == 0


def test_shapes_are_those_of_windows_that_slide_over_the_lists(tmp_path):
    passages = [{"docid": str(n), "doc": "bird " * (1 + 9 * (n < 20))} for n in range(40)]
    request = {"query": {"qid": "1", "text": "what is a bird"}, "candidates": passages}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request), encoding="utf-8")
    workload = Workload(tmp_path, tmp_path / "requests.jsonl", quick=True, repeats=1)
    figures = {name: value for name, (value,) in measure_shapes(workload).items()}
    assert (figures["windows"], figures["lengths of windows"]) == (3, 3)
    assert figures["lengths of windows on a GPU"] <= 3
    assert figures["more tokens by padding, %"] > 0
