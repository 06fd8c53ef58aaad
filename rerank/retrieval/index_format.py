"""The format of an index folder, checked without the libraries that open it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rerank.errors import IndexMismatch

FORMAT = "rerank-index-2"
MANIFEST_FILE = "manifest.json"

#: Kinds of dense search: exact, or approximate by an HNSW graph or by IVF-PQ.
DenseKind: TypeAlias = Literal["flat", "hnsw", "ivf-pq"]


def read_index_settings(folder: Path) -> dict[str, Any]:
    """The content of an index's manifest.json. Raises: IndexMismatch when `folder` has none of this format."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise IndexMismatch(
            f"{folder} is no index: it has no {MANIFEST_FILE}; build one with `rerank index --out {folder}`"
        )
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = settings.get("format")
    except (ValueError, AttributeError) as error:  # no JSON, or no object
        raise IndexMismatch(f"{path} is invalid; build the index again: {error}") from error
    if found != FORMAT:
        raise IndexMismatch(f"{folder} has format {found}, but this version reads {FORMAT}; build the index again")
    return settings
