"""Long work shows its progress: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rerank_eval import progress as module
from rerank_eval.progress import ProgressLines, progress
from rich.console import Console


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines_of_slow_work(total: int, step_s: float) -> list[str]:
    """The lines of `total` steps that take `step_s` each, with a look at the clock every second between them."""
    clock, lines = Clock(), list[str]()
    work = ProgressLines(lines.append, "w", total, clock=clock)
    for _ in range(total):
        for _ in range(int(step_s)):
            clock.now_s += min(1.0, step_s)
            work.print_if_silent()
        clock.now_s += step_s % 1
        work.advance()
    return lines


def test_line_is_printed_for_each_twentieth_of_the_work() -> None:
    lines = lines_of_slow_work(total=100, step_s=1.0)
    assert len(lines) == 20
    assert lines[0] == "w: 5 of 100, 0:05 elapsed"
    assert lines[-1] == "w: 100 of 100, 1:40 elapsed"


def test_line_is_printed_every_30_seconds_even_if_no_step_ends() -> None:
    lines = lines_of_slow_work(total=1, step_s=95.0)
    assert lines == [
        "w: 0 of 1, 0:30 elapsed",
        "w: 0 of 1, 1:00 elapsed",
        "w: 0 of 1, 1:30 elapsed",
        "w: 1 of 1, 1:35 elapsed",
    ]


def test_quick_work_prints_nothing() -> None:
    assert lines_of_slow_work(total=100, step_s=0.01) == []


def test_resumed_work_counts_the_steps_that_are_done() -> None:
    clock, lines = Clock(), list[str]()
    work = ProgressLines(lines.append, "w", 4, done=3, clock=clock)
    clock.now_s = 3.0
    work.advance()
    assert lines == ["w: 4 of 4, 0:03 elapsed"]


def test_piped_output_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORTEST_S", 0.0)
    file = io.StringIO()
    with progress(Console(file=file), "queries", 2) as advance:
        advance()
        advance()
    assert file.getvalue().splitlines() == ["queries: 1 of 2, 0:00 elapsed", "queries: 2 of 2, 0:00 elapsed"]


def test_terminal_gets_a_bar_with_the_elapsed_time() -> None:
    file = io.StringIO()
    with progress(Console(file=file, force_terminal=True, width=80), "queries", 2) as advance:
        advance()
    assert "1/2" in file.getvalue()
    assert "0:00:00" in file.getvalue()
