"""Help of the installed commands: an example for each, and no wrapped errors."""

from __future__ import annotations

import re
import shlex

import pytest

from rerank.commands.cli import app as rerank_app
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
