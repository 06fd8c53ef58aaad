"""Sizes of the files of a folder: they tell a later process what a kill or a power loss cut.

A file's name and size can be on disk before its content is. So a folder is named complete only after `synced_sizes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rerank.errors import ConfigError
from rerank.util.files import atomic_file, sync
from rerank.util.json_files import read_json


def synced_sizes(folder: Path) -> dict[str, int]:
    """Sizes in bytes of all files in a folder, by their paths in it, after their contents are on disk.

    Raises: OSError if the disk is full or broken.
    """
    sync(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def damage_of(folder: Path, sizes: Mapping[str, Any]) -> str:
    """Says which file of a folder is missing or smaller than it was; empty if none is."""
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if (found := path.stat().st_size) < size:
            return f"{path} has {found:,} of {size:,} bytes"
    return ""


def write_synced(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces a file by JSON; the new content is on disk when this returns."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_saved(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file that `write_synced` wrote; None if it is cut or not there."""
    try:
        return read_json(path)
    except ConfigError:
        return None
