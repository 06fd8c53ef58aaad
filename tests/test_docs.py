"""The map in docs/architecture.md is the tree."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAPPED = ("rerank", "eval", "scripts")


def map_entries() -> set[str]:
    """Paths of the files in the map, with the folders that they are indented under."""
    block = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Map")[2].split("```")[1]
    folders: list[str] = []
    entries = set()
    for line in block.strip().splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        folders = folders[: len(indent) // 2]
        entries.add("".join(folders) + name)
        if name.endswith("/"):
            folders.append(name)
    return entries


def source_files() -> set[str]:
    found = (path for folder in MAPPED for pattern in ("*.py", "*.sh") for path in (ROOT / folder).rglob(pattern))
    return {str(path.relative_to(ROOT)) for path in found}


def test_map_names_nothing_that_is_not_there() -> None:
    missing = {entry for entry in map_entries() if not (ROOT / entry).exists()}
    assert not missing


def test_map_names_every_file() -> None:
    files = {f for f in source_files() if not f.startswith("rerank/v1/") and not f.endswith("__init__.py")}
    assert files <= map_entries(), f"not in the map in docs/architecture.md: {sorted(files - map_entries())}"
