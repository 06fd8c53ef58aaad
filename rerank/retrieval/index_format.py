"""The format of an index folder, checked without the libraries that open it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rerank.errors import ConfigError, IndexMismatch
from rerank.util.files import looked_for
from rerank.util.json_files import read_json

FORMAT = "rerank-index-3"
MANIFEST_FILE = "manifest.json"

#: Kinds of dense search: exact, or approximate by an HNSW graph.
DenseKind: TypeAlias = Literal["flat", "hnsw"]


def read_index_settings(folder: Path) -> dict[str, Any]:
    """The content of an index's manifest.json. Raises: IndexMismatch when `folder` has none of this format."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise IndexMismatch(
            f"{folder} is not an index: it has no {MANIFEST_FILE}{looked_for(folder)}; build one with "
            f"`rerank index --collection COLLECTION --out {shlex.quote(str(folder))}`"
        )
    try:
        settings = read_json(path)
    except ConfigError as error:
        raise IndexMismatch(f"{error}; build the index again") from error
    if (found := settings.get("format")) != FORMAT:
        raise IndexMismatch(f"{folder} has format {found}, but this version reads {FORMAT}; build the index again")
    return settings
