"""The README's map is the tree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAPPED = ("rerank", "eval", "scripts")


def map_entries() -> set[str]:
    """Paths of the files in the map, with the folders that they are indented under."""
    block = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Map")[2].split("```")[1]
    folders: list[str] = []
    entries = set()
    for line in block.strip().splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        folders = folders[: len(indent) // 2]
        entries.add("".join(folders) + name)
        if name.endswith("/"):
            folders.append(name)
    return entries


def tracked_files() -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    return set(done.stdout.decode().split())


def test_map_names_nothing_that_is_not_there() -> None:
    missing = {entry for entry in map_entries() if not (ROOT / entry).exists()}
    assert not missing


def test_map_names_every_file() -> None:
    files = {path for path in tracked_files() if path.startswith(MAPPED) and path.endswith((".py", ".sh"))}
    shown = {path for path in files if not path.startswith("rerank/v1/") and not path.endswith("__init__.py")}
    assert shown <= map_entries(), f"not in the README's map: {sorted(shown - map_entries())}"
