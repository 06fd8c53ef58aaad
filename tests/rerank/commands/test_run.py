"""The console, and how a command ends: output for programs is unchanged, errors that a user can act on are one line."""

import io
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest
from rich.console import Console
from rich.table import Table

from rerank.client.error_details import ServiceError
from rerank.commands.display import one_line
from rerank.commands.run import PlainConsole, quiet_libraries, run
from rerank.errors import ConfigError, DeadlineExceeded, ModelServerUnavailable, SelfTestFailed
from tests.serving import TIMEOUT_S, EndOfCall

LONG = "/a/path/of/300/characters" * 12


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width that output for programs must not depend on."""
    monkeypatch.setenv("COLUMNS", "40")


def exit_code(command: Callable[[], object]) -> object:
    """The exit code of a command that fails."""
    with pytest.raises(SystemExit) as ended:
        run(command)
    return ended.value.code


def printed(*objects: object) -> str:
    file = io.StringIO()
    PlainConsole(file=file).print(*objects)
    return file.getvalue()


def test_line_outside_a_terminal_is_unchanged():
    for line in (LONG, f"{LONG}: 12 passages", "[red]markup[/red] :smile: [/]", "a\ttab", "", "👩\u200d🚀 \u200fעברית"):
        assert printed(line) == f"{line}\n"


def test_table_outside_a_terminal_is_tab_separated_values(monkeypatch, capsys):
    made = Table(title=f"results of {LONG}", title_justify="left")
    made.add_column("rank", justify="right")
    made.add_column("score:\nlog-prob")
    made.add_column("passage", overflow="fold", width=10)
    made.add_row("1", "-0.5", one_line(f"{LONG}\nsecond line"))
    made.add_row("10", "", "[bold]:smile:")
    PlainConsole().print(made)
    PlainConsole().note("a note")
    out, err = capsys.readouterr()
    assert err == f"results of {LONG}\na note\n"
    assert out == f"rank\tscore: log-prob\tpassage\n1\t-0.5\t{LONG} second line\n10\t\t[bold]:smile:\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_a_terminal_obeys_is_shown(is_terminal, monkeypatch):
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


@pytest.mark.parametrize(
    ("module", "requirement"), [("mcp.server.stdio", "rerank-listwise[mcp]"), ("torch.nn", "rerank-listwise\n")]
)
def test_missing_package_is_one_line_and_exit_code_2(module, requirement, capsys):
    missing = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert exit_code(Mock(side_effect=missing)) == 2
    printed = capsys.readouterr().err
    assert f"needs {module.partition('.')[0]}, which is not installed; install {requirement}" in printed


def from_service(status: str) -> ServiceError:
    return ServiceError(EndOfCall(grpc.StatusCode[status]), "host:1")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SelfTestFailed("of a model"), 1),
        (from_service("INTERNAL"), 1),
        (ConfigError("of a call"), 2),
        (from_service("INVALID_ARGUMENT"), 2),
        (from_service("UNAVAILABLE"), 3),
        (ModelServerUnavailable("nobody"), 3),
        (DeadlineExceeded("late"), 4),
        (from_service("DEADLINE_EXCEEDED"), 4),
        (from_service("RESOURCE_EXHAUSTED"), 5),
    ],
)
def test_exit_code_says_who_has_to_act(error, code, capsys):
    assert exit_code(Mock(side_effect=error)) == code
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize(
    ("level", "of_libraries", "of_ours"),
    [("DEBUG", "DEBUG", "DEBUG"), ("INFO", "WARNING", "INFO"), ("WARNING", "WARNING", "WARNING")],
)
def test_libraries_log_warnings_alone_unless_the_log_is_for_debugging(level, of_libraries, of_ours):
    names = ("rerank", "rerank_eval", "rerank_training")
    logging.getLogger().setLevel(level)
    quiet_libraries()
    found = [logging.getLogger(name).getEffectiveLevel() for name in ("faiss.loader", "httpx2", "any.other")]
    assert found == [logging.getLevelName(of_libraries)] * 3
    assert [logging.getLogger(f"{name}.x").getEffectiveLevel() for name in names] == [logging.getLevelName(of_ours)] * 3


def test_missing_module_of_ours_is_a_bug():
    with pytest.raises(ModuleNotFoundError):
        run(Mock(side_effect=ModuleNotFoundError("No module named 'rerank.none'", name="rerank.none")))


def test_missing_temporary_folder_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc/none"])
    exit_code(tempfile._get_default_tempdir)
    printed = capsys.readouterr().err
    assert printed.startswith("error: No usable temporary directory found")
    assert "give one that can be written in TMPDIR" in printed


def test_output_is_written_in_every_encoding():
    """Also a text of the command line that the locale cannot read."""
    program = (
        "import sys; from rerank.commands import run, options; run.run(lambda: print(options.as_utf8(sys.argv[1])))"
    )
    environment = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    shown = subprocess.run([sys.executable, "-c", program, "日本"], env=environment, capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, "\\u65e5\\u672c\n")


FULL = "error: standard output cannot be written: No space left on device; send it elsewhere\n"
PRINTS = "from rerank.commands.run import console, run; run(lambda: {command})"


def ended(stdout: object, *arguments: str, unbuffered: bool = False) -> tuple[int, str]:
    """Exit code and stderr of Python with these arguments."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    result = subprocess.run([sys.executable, *arguments], **streams, timeout=TIMEOUT_S, env=environment)
    return result.returncode, result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("print('short')", False), ("print('long' * 100_000)", True), ("console.print('rich')", False)],
)
def test_full_output_is_one_line_and_exit_code_1(command, unbuffered):
    with Path("/dev/full").open("wb") as full:
        assert ended(full, "-c", PRINTS.format(command=command), unbuffered=unbuffered) == (1, FULL)


@pytest.mark.parametrize("command", ["print('short')", "print('long' * 100_000)"])
def test_pipe_without_a_reader_ends_a_command_silently_and_not_with_0(command):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert ended(writing, "-c", PRINTS.format(command=command)) == (1, "")
    finally:
        os.close(writing)


def test_output_is_as_it_was_written(tmp_path):
    out = tmp_path / "out"
    with out.open("wb") as file:
        assert ended(file, "-c", PRINTS.format(command="print('ä\\n' * 50_000, end='')")) == (0, "")
    assert out.read_text(encoding="utf-8") == "ä\n" * 50_000
