"""Help of the installed commands: an example for each, undivided values, and no wrapped errors."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rerank.commands.cli import app as rerank_app
from tests.rerank.commands.conftest import Command
from tests.test_doc_commands import PROJECT, check_command, help_of

COMMANDS = [
    *([("rerank", command.name or command.callback.__name__) for command in rerank_app.registered_commands]),  # type: ignore[union-attr]
    ("rerank", "keys", "add"),
    *(("rerank", "checkpoint", name) for name in ("zero-init", "pack", "golden")),
    *((name,) for name in PROJECT["scripts"] if name != "rerank"),
]


def slow_if_it_imports_torch(command: tuple[str, ...]) -> object:
    return pytest.param(command, marks=pytest.mark.slow) if command[0].startswith(("train", "distill")) else command


@pytest.mark.parametrize("command", [*map(slow_if_it_imports_torch, COMMANDS)], ids=" ".join)
def test_help_ends_with_an_example_that_exists(command: tuple[str, ...]) -> None:
    _, found, example = help_of(*command).partition("Example:\n")
    assert found
    lines = [line for line in re.sub(r"\\\n\s*", "", example).splitlines() if line.strip()]
    assert any(tuple(shlex.split(line, comments=True)[: len(command)]) == command for line in lines)
    for line in lines:
        assert line.startswith("  ")
        words = shlex.split(line, comments=True)
        check_command(words)


@pytest.mark.parametrize("columns", ["40", "80"])
def test_values_are_never_divided(columns: str) -> None:
    """Not even on a narrow terminal; lines are then longer than the terminal is wide."""
    code = "from rerank.commands.cli import main; main()"
    arguments = [sys.executable, "-c", code, "search", "--help"]
    shown = subprocess.run(arguments, env={"COLUMNS": columns}, capture_output=True, text=True, check=True).stdout
    for value in ("hybrid-rrf", "hybrid-z-score", "top-down", "weighted-ranknet", "127.0.0.1:50051"):
        assert value in shown
    assert "2147483647" not in shown
    assert " range>" not in shown


def test_wrong_flag_is_one_unwrapped_line(rerank: Command, tmp_path: Path) -> None:
    path = tmp_path / ("long" * 40)
    refused = rerank("search", "a query", "--depth", path)
    assert refused.code == 2
    assert refused.err.splitlines()[-1].startswith("Error: Invalid value for '--depth'")
    assert "╭" not in refused.err


@pytest.mark.parametrize("number", ["2147483648", "-2147483648", "9" * 5000, "1e3", "", "seven"])
def test_number_outside_int32_is_refused(rerank: Command, number: str) -> None:
    refused = rerank("search", "a query", "--depth", number)
    assert refused.code == 2
    assert "--depth" in refused.err
    assert len(refused.err) < 1000
