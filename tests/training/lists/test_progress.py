"""Progress lines where the output is not a terminal."""

from __future__ import annotations

import io

import pytest
from rerank_training.lists.progress import with_progress
from rich.console import Console


@pytest.mark.parametrize(
    ("seconds_per_item", "lines"),
    [(0.001, 0), (1.0, 20), (10.0, 33)],
    ids=["quick work prints none", "one per 5 %", "one per 30 s"],
)
def test_lines_are_printed_every_share_or_interval(
    monkeypatch: pytest.MonkeyPatch, seconds_per_item: float, lines: int
) -> None:
    now = [0.0]
    monkeypatch.setattr("rerank_training.lists.progress.time.monotonic", lambda: now[0])
    out = io.StringIO()
    total = 100
    for _ in with_progress(range(total), "queries", total, Console(file=out)):
        now[0] += seconds_per_item
    printed = out.getvalue().splitlines()
    assert len(printed) == lines
    assert all(line.startswith("queries: ") and line.endswith(f" of {total}") for line in printed)
