"""Collections in BEIR layout: a folder with corpus.jsonl, whose lines have `_id`, `title` and `text`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rerank.errors import CollectionError
from rerank.types import Passage


def checked_folder(name: str) -> Path:
    """The absolute path of a folder in BEIR layout. Raises: CollectionError when it has no corpus.jsonl."""
    folder = Path(name).absolute()
    if not (folder / "corpus.jsonl").is_file():
        raise CollectionError(f"collection {name!r} is neither 'pydoc' nor a folder with a corpus.jsonl")
    return folder


def passages(folder: Path) -> Iterator[Passage]:
    """The passages in file order, each with title and text joined by a space, as is usual for BEIR.

    Raises:
        CollectionError: a line is no JSON object with `_id` and `text`; the message names the line.
    """
    with (folder / "corpus.jsonl").open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _passage(line, f"{folder.name}/corpus.jsonl:{number}")


def _passage(line: str, place: str) -> Passage:
    try:
        row: Any = json.loads(line)
        title, text = row.get("title") or "", row["text"]
        return Passage(doc_id=str(row["_id"]), text=f"{title} {text}".strip())
    except (json.JSONDecodeError, AttributeError, TypeError, KeyError) as error:
        raise CollectionError(f"{place}: expected a JSON object with _id and text ({error!r})") from error
