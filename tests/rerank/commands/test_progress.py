"""Long work shows its progress: bars on a terminal, lines elsewhere."""

import io

from rich.console import Console

from rerank.commands.progress import ProgressLines, show_progress, with_progress


def lines_of_slow_work(total: int | None, steps: int, step_s: float, unit: str = "") -> list[str]:
    """The lines of steps that take `step_s` each."""
    now_s, lines = 0.0, list[str]()
    progress = ProgressLines(lines.append, unit, lambda: now_s)
    for done in range(steps + 1):
        now_s = done * step_s
        progress.report("w", done, total)
    return lines


def test_line_is_printed_for_each_twentieth_of_the_work():
    lines = lines_of_slow_work(total=100, steps=100, step_s=1.0)
    assert len(lines) == 20
    assert lines[0] == "w: 5 of 100 (5%), 0:05 elapsed, 1:35 left"
    assert lines[-1] == "w: 100 of 100 (100%), 1:40 elapsed"


def test_work_of_an_unknown_length_has_a_line_every_30_seconds():
    lines = lines_of_slow_work(total=None, steps=70, step_s=1.0, unit="passages")
    assert lines == ["w: 30 passages, 1 passages/s, 0:30 elapsed", "w: 60 passages, 1 passages/s, 1:00 elapsed"]


def test_piped_output_gets_lines(monkeypatch):
    monkeypatch.setattr("rerank.commands.progress._SHORTEST_S", 0.0)
    file = io.StringIO()
    assert list(with_progress("ab", "queries", 2, Console(file=file))) == ["a", "b"]
    shown = [line.partition(",")[0] for line in file.getvalue().splitlines()]
    assert shown == ["queries: 1 of 2 (50%)", "queries: 2 of 2 (100%)"]


def test_terminal_gets_a_bar_with_the_elapsed_time():
    file = io.StringIO()
    with show_progress(Console(file=file, force_terminal=True, width=80), "passages") as progress:
        progress.report("vectors", 1, 2)
    assert all(part in file.getvalue() for part in ("vectors", "1/2", "0:00:00"))
