"""Collections in BEIR layout: a folder with corpus.jsonl, whose lines have `_id`, `title` and `text`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rerank.errors import CollectionError
from rerank.files import sha256_of_files
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
        CollectionError: the file cannot be read, or a line is no JSON object in UTF-8 with `_id` and `text`; the
            message names the line.
    """
    return (passage for _, passage in _numbered_passages(folder))


def lines_of(folder: Path, doc_id: str) -> list[int]:
    """The 1-based numbers of the lines of corpus.jsonl with this id."""
    return [number for number, passage in _numbered_passages(folder) if passage.doc_id == doc_id]


def fingerprint(folder: Path) -> str:
    """SHA-256 of corpus.jsonl."""
    return sha256_of_files([folder / "corpus.jsonl"])


def _numbered_passages(folder: Path) -> Iterator[tuple[int, Passage]]:
    try:
        with (folder / "corpus.jsonl").open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _passage(line, f"{folder.name}/corpus.jsonl:{number}")
    except OSError as error:
        raise CollectionError(f"{folder / 'corpus.jsonl'} cannot be read: {error.strerror or error}") from error


def _passage(line: bytes, place: str) -> Passage:
    try:
        row: Any = json.loads(line.decode("utf-8"))
        title, text = row.get("title") or "", row["text"]
        return Passage(doc_id=str(row["_id"]), text=f"{title} {text}".strip(), title=title.strip())
    except UnicodeDecodeError as error:
        raise CollectionError(f"{place}: the line is not UTF-8 ({error}); convert the file to UTF-8") from error
    except (json.JSONDecodeError, AttributeError, TypeError, KeyError) as error:
        raise CollectionError(f"{place}: expected a JSON object with _id and text ({error!r})") from error
