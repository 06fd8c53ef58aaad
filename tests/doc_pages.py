"""The pages of the documentation, and the commands that they show."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parent.parent
#: The commands of the package, and the function of each.
COMMANDS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
#: Replaces what a message fills in, which may be a number, a name or a path.
FILLED_IN = "7"


def pages() -> list[Path]:
    """The pages that people write and read."""
    first = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md"]
    return [*first, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "scripts").glob("*/README.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in this language, with or without a title."""
    return re.findall(
        rf"^```{language}(?: title=\"\w+\")?\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def commands(page: Path) -> Iterator[list[str]]:
    """The shell commands of a page as words, without comments; the parts of a pipe count one by one."""
    for block in blocks(page, "bash"):
        pending = ""
        for line in block.splitlines():
            pending = f"{pending}{line}\n"
            if line.endswith("\\"):
                pending = f"{pending[:-2]} "
                continue
            try:
                words = shlex.split(pending, comments=True)
            except ValueError:  # a quotation that goes on in the next line
                continue
            pending = ""
            for part in " ".join(map(shlex.quote, words)).split(" '|' "):
                if part:
                    yield shlex.split(part)
        assert not pending, f"{page.name}: unfinished command {pending!r}"


def parse_command(command: str) -> None:
    """Raises: an exception of typer unless the command can be parsed; without arguments, it is only mentioned."""
    words = shlex.split(command.replace("…", FILLED_IN).replace("...", FILLED_IN))
    parser: Any = None
    if words[0] == "rerank" or any(word.startswith("-") for word in words):
        module, _, function = COMMANDS[words[0]].partition(":")
        (app,) = getattr(importlib.import_module(module), function).args  # partial(run, app)
        parser = typer.main.get_command(app)
    context = None
    while parser is not None and hasattr(parser, "commands") and words[1:]:
        assert words[1] in parser.commands, f"{words[0]} has no command {words[1]}"
        context, parser, words = (
            parser.make_context(words[0], [words[1]], parent=context),
            parser.commands[words[1]],
            words[1:],
        )
    if words[1:]:
        parser.make_context(words[0], words[1:], parent=context)
