"""The table counts the lists that a model makes worse."""

from __future__ import annotations

from rerank_eval.statistics import compare

from scripts.reproduce.default_table import Row, as_markdown


def test_table_counts_lists_that_are_worse() -> None:
    ups, downs = [0.3, 0.4, 0.5, 0.6], [0.2, 0.31, 0.4, 0.49]
    slightly = [0.3, 0.4, 0.5, 0.598]
    found = [
        Row("better", compare(ups, downs)),
        Row("worse", compare(downs, ups)),
        Row("hardly worse", compare(slightly, ups)),
    ]
    lines = as_markdown("default", found).splitlines()
    assert lines[2].startswith("| better | 4 | 0.3500 | 0.4500 | +0.1000 ± ")
    assert lines[2].endswith(" | 4/0/0 |")
    assert lines[5] == "| mean |  | 0.4167 | 0.4165 | -0.0002 |  |  |"
    assert lines[-1] == ("Significantly worse (p < .05, each alone) on 1 of 3 lists; worse by more than .005 on 1.")
