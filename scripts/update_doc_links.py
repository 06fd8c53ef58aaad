"""Updates the line numbers in the documentation's links to the source.

    python scripts/update_doc_links.py

A link such as [`Engine.run`](../rerank/engine/engine.py#L90) gets the line of that class, method or function.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: [`name`](path.py#L123), the path relative to the page.
LINE_LINK = re.compile(r"\[`([\w.]+)`\]\(([\w./-]+\.py)#L(\d+)\)")


def pages() -> list[Path]:
    """The pages of the documentation."""
    first = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md"]
    return [*first, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "scripts").glob("*/README.md"))]


def updated(page: Path) -> str:
    """The text of a page with current line numbers.

    Raises:
        ValueError: a link names a file or a definition that does not exist.
    """
    text = page.read_text(encoding="utf-8")
    if problems := [problem for link in LINE_LINK.finditer(text) if (problem := _problem(page, link))]:
        raise ValueError("; ".join(problems))
    return LINE_LINK.sub(lambda link: _current_link(page, link), text)


def definitions(source: Path) -> dict[str, int]:
    """The 1-based line of every class and function of a file by its qualified name, such as `Engine.run`."""
    return dict(_definitions(ast.parse(source.read_text(encoding="utf-8")), ""))


def main() -> None:
    try:
        outdated = {page: text for page in pages() if (text := updated(page)) != page.read_text(encoding="utf-8")}
    except ValueError as error:
        sys.exit(f"error: {error}")
    for page, text in outdated.items():
        print(f"updated: {page.relative_to(ROOT)}")
        page.write_text(text, encoding="utf-8")


def _problem(page: Path, link: re.Match[str]) -> str:
    """The reason that a link cannot be updated; empty if it can."""
    name, path, _ = link.groups()
    if not (page.parent / path).is_file():
        return f"{page.relative_to(ROOT)} links to {path}, which does not exist"
    if name not in definitions(page.parent / path):
        return f"{page.relative_to(ROOT)} links to {name} in {path}, which does not define it"
    return ""


def _current_link(page: Path, link: re.Match[str]) -> str:
    name, path, _ = link.groups()
    return f"[`{name}`]({path}#L{definitions(page.parent / path)[name]})"


def _definitions(parent: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node.lineno
            yield from _definitions(node, f"{prefix}{node.name}.")


if __name__ == "__main__":
    main()
