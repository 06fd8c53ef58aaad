"""Figures are PNG files, and only those with data are drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rerank_eval.plots import draw

from tests.eval.test_report import BETTER, FIRST, UPPER_BOUND, WORSE

pytest.importorskip("matplotlib")


@pytest.mark.slow
def test_both_figures_are_drawn(tmp_path: Path) -> None:
    names = draw([FIRST, BETTER, replace(WORSE, costs={})], tmp_path)
    assert names == ["latency.png", "differences.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_single_system_has_no_figure_of_differences(tmp_path: Path) -> None:
    assert draw([FIRST], tmp_path) == ["latency.png"]


def test_system_without_times_has_no_figure_of_latency(tmp_path: Path) -> None:
    assert draw([UPPER_BOUND], tmp_path) == []
