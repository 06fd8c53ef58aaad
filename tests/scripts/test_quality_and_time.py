"""The plot of README shows the figures of the table in docs/evidence/results.md."""

from __future__ import annotations

from pathlib import Path

from scripts.quality_and_time import PAGE, PLOT, points, svg

ROOT = Path(__file__).parents[2]


def test_plot_is_drawn_from_the_table() -> None:
    drawn = svg(points((ROOT / PAGE).read_text(encoding="utf-8")))
    assert (ROOT / PLOT).read_text(encoding="utf-8") == drawn, "run: python -m scripts.quality_and_time draw"


def test_axes_have_titles() -> None:
    assert svg([]).count("nDCG@10") == svg([]).count("CPU time") == 1
