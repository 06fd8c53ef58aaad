"""Prints lines by package, the longest functions and the words of each page, for a person to read.

    make report

Nothing fails by these numbers. A long function or page is a question: is it several ideas?
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
_GENERATED = "rerank/v1/"


class Function(NamedTuple):
    """A function with its length in lines, its signature and docstring included."""

    lines: int
    name: str
    path: str


def main(longest: Annotated[int, typer.Option(min=0, help="Number of functions that are listed.")] = 15) -> None:
    """Print lines by package, the longest functions and words by page."""
    files = _tracked()
    modules = [path for path in files if path.endswith(".py") and not path.startswith(_GENERATED)]
    pages = [path for path in files if path.endswith(".md")]
    lines = Counter[str]()
    for path in modules:
        lines[str(Path(path).parent)] += len(_text(path).splitlines())
    found = sorted((function for path in modules for function in _functions(path)), reverse=True)
    words = Counter({path: len(_text(path).split()) for path in pages})
    tops = Counter[str]()
    for folder, count in lines.items():
        tops[folder.split("/")[0]] += count
    console = Console()
    console.print(_table("Python by folder", ("lines", "folder"), tops.most_common()))
    console.print(_table("Python by package", ("lines", "package"), lines.most_common()))
    functions = [(f"{result.name}, {result.path}", result.lines) for result in found[:longest]]
    console.print(_table("Longest functions", ("lines", "function"), functions))
    title = f"Documentation by hand: {words.total():,} words"
    console.print(_table(title, ("words", "page"), words.most_common()))


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return listed.stdout.splitlines()


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _functions(path: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(_text(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function((node.end_lineno or node.lineno) - node.lineno + 1, node.name, path)


def _table(title: str, columns: tuple[str, str], rows: list[tuple[str, int]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(columns[0], justify="right")
    table.add_column(columns[1])
    for name, count in rows:
        table.add_row(f"{count:,}", name)
    return table


if __name__ == "__main__":
    typer.run(main)
