"""Figures are pictures, and are drawn where there is something to show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rerank_eval.plots import draw

from tests.eval.test_report import BETTER, BOUND, FIRST, WORSE

pytest.importorskip("matplotlib")


def test_both_figures_are_drawn(tmp_path: Path) -> None:
    names = draw([FIRST, BETTER, replace(WORSE, costs={})], tmp_path)
    assert names == ["latency.png", "differences.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_one_system_differs_from_nothing(tmp_path: Path) -> None:
    assert draw([FIRST], tmp_path) == ["latency.png"]


def test_what_took_no_time_has_no_latency(tmp_path: Path) -> None:
    assert draw([BOUND], tmp_path) == []
