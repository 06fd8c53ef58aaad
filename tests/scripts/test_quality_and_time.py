"""The plot of README shows the figures of the table in docs/evidence/results.md."""

import re
from itertools import combinations
from pathlib import Path

from scripts.quality_and_time import PAGE, PLOT, points, svg

ROOT = Path(__file__).parents[2]


def test_plot_is_drawn_from_the_table():
    drawn = svg(points((ROOT / PAGE).read_text(encoding="utf-8")))
    assert (ROOT / PLOT).read_text(encoding="utf-8") == drawn, "run: python -m scripts.quality_and_time draw"


def test_axes_have_titles():
    assert svg([]).count("nDCG@10") == svg([]).count("CPU time") == 1


def test_label_covers_no_mark_no_label_and_no_axis():
    drawn = (ROOT / PLOT).read_text(encoding="utf-8")
    mark = r'<circle class="\w+" cx="([\d.]+)" cy="([\d.]+)"'
    label = r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">(.+?)<'
    boxes = list[tuple[float, float, float, float]]()
    for mark_x, mark_y, x, y, anchor, name in re.findall(rf"{mark}.+\n{label}", drawn):
        width = 7.0 * len(name)
        left = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        assert left >= 70, name
        assert left + width <= 760, name
        boxes += [(float(mark_x) - 6, float(mark_y) - 6, 12, 12), (left, float(y) - 11, width, 12)]
    assert len(boxes) == 2 * drawn.count("<circle") > 10
    for (x1, y1, w1, h1), (x2, y2, w2, h2) in combinations(boxes, 2):
        assert x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1
