"""The plot of README shows the figures of the table in docs/evidence/results.md."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.quality_and_time import PAGE, PLOT, Point, points, svg

ROOT = Path(__file__).parents[2]


def test_plot_is_drawn_from_the_table() -> None:
    drawn = svg(points((ROOT / PAGE).read_text(encoding="utf-8")))
    assert (ROOT / PLOT).read_text(encoding="utf-8") == drawn, "run: python -m scripts.quality_and_time draw"


def test_label_covers_no_mark_no_label_and_no_axis() -> None:
    """Four marks in a row, one at the left axis and one at the right end."""
    drawn = svg(
        [Point(name, 0.6, ms) for name, ms in (("left", 0), ("a name", 100), ("another", 130), ("right", 40_000))]
    )
    marks = [
        (float(x) - 6, float(y) - 6, 12.0)
        for x, y in re.findall(r'<circle class="\w+" cx="([\d.]+)" cy="([\d.]+)"', drawn)
    ]
    labels = [
        (float(x), float(y) - 12, 7.0 * len(name))
        for x, y, name in re.findall(r'<text x="([\d.]+)" y="([\d.]+)">(.+?)</text>', drawn)
    ]
    assert len(labels) == len(marks) == 4
    boxes = [*marks, *labels]
    for place, (x, y, width) in enumerate(labels, start=4):
        assert x >= 70
        assert x + width <= 740
        for other_x, other_y, other_width in [*boxes[:place], *boxes[place + 1 :]]:
            assert x + width <= other_x or other_x + other_width <= x or abs(y - other_y) >= 12


def test_axes_have_titles() -> None:
    assert svg([]).count("nDCG@10") == svg([]).count("CPU time") == 1
