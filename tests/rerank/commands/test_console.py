"""The console: tables on a terminal, and lines that are neither wrapped nor cut nor padded anywhere else."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from rerank.commands.console import PlainConsole
from rerank.commands.display import one_line

LONG = "/a/path/of/300/characters" * 12


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width that output for programs must not depend on."""
    monkeypatch.setenv("COLUMNS", "40")


def printed(*objects: object) -> str:
    file = io.StringIO()
    PlainConsole(file=file).print(*objects)
    return file.getvalue()


def table() -> Table:
    made = Table(title=f"results of {LONG}", title_justify="left")
    made.add_column("rank", justify="right")
    made.add_column("score:\nlog-prob")
    made.add_column("passage", overflow="fold", width=10)
    made.add_row("1", "-0.5", one_line(f"{LONG}\nsecond line"))
    made.add_row("10", "", "[bold]:smile:")
    return made


def test_line_outside_a_terminal_is_unchanged() -> None:
    for line in (LONG, f"{LONG}: 12 passages", "[red]markup[/red] :smile: [/]", "a\ttab", "", "👩\u200d🚀 \u200fעברית"):
        assert printed(line) == f"{line}\n"


def test_table_outside_a_terminal_is_tab_separated_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PlainConsole().print(table())
    PlainConsole().note("a note")
    out, err = capsys.readouterr()
    assert err == f"results of {LONG}\na note\n"
    assert out.split("\n") == [
        "rank\tscore: log-prob\tpassage",
        f"1\t-0.5\t{LONG} second line",
        "10\t\t[bold]:smile:",
        "",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_a_terminal_obeys_is_shown(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "is_terminal", is_terminal)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("NO_COLOR", "1")
    hostile = "\x1b]0;title\x07 \x1b[2J\x9b31m \r\u202eab\udcff"
    made = Table(hostile, title=hostile, style=None, title_style="none", header_style="none")
    made.add_row(hostile)
    made.add_row(one_line(hostile))
    shown = printed(f"error: {hostile}", made)
    assert not set("\x1b\x07\x9b\r\u202e\udcff") & set(shown)
    assert shown.count(r"\u001b]0;title\u0007 \u001b[2J\u009b31m") == 5
