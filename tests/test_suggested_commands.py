"""Commands that messages, helps and pages suggest can be given as they stand: their flags exist, none is missing."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.doc_pages import pages
from tests.test_doc_commands import commands

ROOT = Path(__file__).parent.parent
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
NAMES = "|".join(SCRIPTS)
#: Stands for what a message fills in, which may be a number, a name or a path.
FILLED_IN = "7"
#: A command in backquotes, or after "try:", "serve it:" and the like up to the next comma.
SUGGESTED = re.compile(rf"`((?:{NAMES})(?: [^`]+)?)`|(?:[a-z]: |, )((?:{NAMES}) [^`,;]+)")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the content of each text of a Python file that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else FILLED_IN for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def suggested(text: str) -> list[str]:
    return [quoted or bare for quoted, bare in SUGGESTED.findall(" ".join(text.split()))]


def check(command: str) -> None:
    """Raises: an exception of typer unless the command can be parsed; without arguments, it is only mentioned."""
    words = shlex.split(command.replace("…", FILLED_IN).replace("...", FILLED_IN))
    parser: Any = None
    if words[0] == "rerank" or any(word.startswith("-") for word in words):
        module = importlib.import_module(SCRIPTS[words[0]].partition(":")[0])
        parser = typer.main.get_command(module.app)
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


MESSAGES = [
    pytest.param(command, id=f"{path.relative_to(ROOT)}:{line}")
    for folder in ("rerank", "eval", "training", "deploy", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
    for line, text in texts(path)
    for command in suggested(text)
]
PROSE = [
    pytest.param(command, id=f"{page.name}-{command}")
    for page in pages()
    for command in suggested(re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE))
    if not command.startswith(("train-", "distill-"))  # their parsers need torch; `test_doc_commands` knows their flags
]
BLOCKS = [
    pytest.param(shlex.join(words), id=f"{page.name}-{shlex.join(words)}")
    for page in pages()
    for words in commands(page)
    if words[0] == "rerank"
]


@pytest.mark.parametrize("command", MESSAGES)
def test_command_that_a_message_suggests_can_be_given(command: str) -> None:
    check(command)


@pytest.mark.parametrize("command", BLOCKS)
def test_command_that_a_page_shows_can_be_given(command: str) -> None:
    check(command)


@pytest.mark.parametrize("command", PROSE)
def test_command_that_a_sentence_mentions_has_its_flags(command: str) -> None:
    """A sentence may leave out what it is not about."""
    try:
        check(command)
    except Exception as error:
        if type(error).__name__ not in ("MissingParameter", "BadParameter", "BadOptionUsage", "UsageError"):
            raise


@pytest.mark.parametrize(
    "wrong",
    ["rerank index --out x", "rerank serve --idex x", "rerank serve --index", "rerank keys remove", "rerank nothing"],
)
def test_the_check_finds_wrong_advice(wrong: str) -> None:
    with pytest.raises(Exception, match=r"Missing parameter|No such option|requires an argument|has no command"):
        check(wrong)


def test_suggestions_are_found() -> None:
    assert suggested('x; try: rerank search "…" --target a:1, rerank models --target a:1, or y') == [
        'rerank search "…" --target a:1',
        "rerank models --target a:1",
    ]
    assert suggested("build one with `rerank index\n --out x`") == ["rerank index --out x"]
    assert len(MESSAGES) > 10
