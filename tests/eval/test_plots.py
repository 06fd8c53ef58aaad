"""Figures are PNG files, and only those with data are drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rerank_eval.plots import draw

from rerank.errors import ConfigError
from tests.eval.test_report import BETTER, FIRST, UPPER_BOUND, WORSE
from tests.full_disk import largest_file

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


def test_figure_for_which_there_is_no_space_is_not_there_at_all(tmp_path: Path) -> None:
    with largest_file(1000), pytest.raises(ConfigError, match=r"latency\.png cannot be written: .*; free disk space"):
        draw([FIRST], tmp_path)
    assert list(tmp_path.iterdir()) == []
