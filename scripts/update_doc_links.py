"""Updates what the documentation says about the source: the line numbers in links, and the map of the tree.

    python scripts/update_doc_links.py

A link such as [`Engine.run`](../rerank/engine/engine.py#L90) gets the line of that class, method or function. The map
stands in docs/map.md between two comments; it lists each source file with the first line of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAP_PAGE = ROOT / "docs" / "map.md"

#: Folders of the map, each with its subfolders.
MAPPED = ("rerank", "eval", "training", "scripts")
#: [`name`](path.py#L123), the path relative to the page.
LINE_LINK = re.compile(r"\[`([\w.]+)`\]\(([\w./-]+\.py)#L(\d+)\)")
_MAP = re.compile(r"(<!-- map: [^>]* -->\n).*?(<!-- end of map -->)", re.DOTALL)


def pages() -> list[Path]:
    """The pages of the documentation."""
    first = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*first, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "scripts").glob("*/README.md"))]


def updated(page: Path) -> str:
    """The text of a page with current line numbers, and for docs/map.md with the current map.

    Raises:
        ValueError: a link names a file or a definition that does not exist.
    """
    text = page.read_text(encoding="utf-8")
    if problems := [problem for link in LINE_LINK.finditer(text) if (problem := _problem(page, link))]:
        raise ValueError("; ".join(problems))
    text = LINE_LINK.sub(lambda link: _current_link(page, link), text)
    return _MAP.sub(lambda found: found[1] + tree_map() + found[2], text) if page == MAP_PAGE else text


def definitions(source: Path) -> dict[str, int]:
    """The 1-based line of every class and function of a file by its qualified name, such as `Engine.run`."""
    return dict(_definitions(ast.parse(source.read_text(encoding="utf-8")), ""))


def mapped_files() -> list[Path]:
    """The source files of the map, sorted; without generated files and `__init__.py`."""
    files = (path for folder in MAPPED for pattern in ("*.py", "*.sh") for path in (ROOT / folder).rglob(pattern))
    generated = ROOT / "rerank" / "v1"
    return sorted(path for path in files if generated not in path.parents and path.name != "__init__.py")


def tree_map() -> str:
    """The map in Markdown: one table per folder, with the first line of each file's docstring."""
    lines: list[str] = []
    files = mapped_files()
    for folder in sorted({path.parent for path in files}):
        package = folder / "__init__.py"
        lines += ["", f"### `{folder.relative_to(ROOT)}/`", ""]
        lines += [_summary(package), ""] if package.exists() and _summary(package) else []
        lines += ["| File | Content |", "| --- | --- |"]
        for path in files:
            if path.parent == folder:
                lines.append(f"| [{path.name}](../{path.relative_to(ROOT)}) | {_summary(path)} |")
    return "\n".join(lines) + "\n\n"


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


def _summary(path: Path) -> str:
    """The first line of a module's docstring, or the first comment of a shell script."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    else:
        summary = next(line.lstrip("# ") for line in text.splitlines() if re.match(r"# \S", line))
    return summary.replace("|", r"\|")


if __name__ == "__main__":
    main()
