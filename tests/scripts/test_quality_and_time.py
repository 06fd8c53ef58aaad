"""The plot of README shows the figures of the table in docs/evidence/results.md."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from scripts.quality_and_time import PAGE, PLOT, points, svg

ROOT = Path(__file__).parents[2]


def test_plot_is_drawn_from_the_table() -> None:
    drawn = svg(points((ROOT / PAGE).read_text(encoding="utf-8")))
    assert (ROOT / PLOT).read_text(encoding="utf-8") == drawn, "run: python -m scripts.quality_and_time draw"


def test_better_is_higher_and_slower_is_further_right() -> None:
    table = "| slow | .7 | 2,000 | 9 |\n| fast | **.6** | 20 | 9 |\n"
    slow, fast = points(f"## Quality and time\n\n{table}\n## Next\n\n| x | .5 | 1 | 1 |\n")
    assert (slow.quality, slow.ms, fast.quality, fast.ms) == (0.7, 2000, 0.6, 20)
    marks = ElementTree.fromstring(svg([slow, fast])).findall("{http://www.w3.org/2000/svg}circle")
    (slow_x, slow_y), (fast_x, fast_y) = ((float(mark.attrib["cx"]), float(mark.attrib["cy"])) for mark in marks)
    assert slow_x > fast_x
    assert slow_y < fast_y
