"""Commands that messages and helps suggest can be given as they are: their flags exist, none is missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.doc_pages import COMMANDS, FILLED_IN, parse_command

ROOT = Path(__file__).parent.parent
NAMES = "|".join(COMMANDS)
FOLDERS = ("rerank", "eval", "training", "deploy", "scripts")
#: A command in backquotes, or after "try:", "serve it:" and the like up to the next comma.
SUGGESTED = re.compile(rf"`((?:{NAMES})(?: [^`]+)?)`|(?:[a-z]: |, )((?:{NAMES}) [^`,;]+)")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the content of each text of a Python file that is not a docstring."""
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


def test_commands_that_messages_suggest_can_be_given() -> None:
    """In one test, because reading all files would take each process a second before the first test."""
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    given = [(path, line, command) for path in files for line, text in texts(path) for command in suggested(text)]
    assert len(given) > 10
    problems = []
    for path, line, command in given:
        try:
            parse_command(command)
        except Exception as error:
            problems.append(f"{path.relative_to(ROOT)}:{line}: {command}: {type(error).__name__} {error}")
    assert not problems
