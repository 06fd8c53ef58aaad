"""Integrity of an index: the sizes and SHA-256 of its files, stored in its manifest and checked when it is opened."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rerank.errors import IndexMismatch
from rerank.retrieval.index_format import MANIFEST_FILE, read_index_settings
from rerank.util.files import sha256_of_files

#: Files up to this size are hashed whenever the index is opened, in some 20 ms each.
_SMALL_BYTES = 16 * 1024 * 1024
#: Of larger files, the beginning is: with a damaged header, FAISS may end the process or not return.
_HEAD_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Size and hash of a file, and the hash of the first MiB of a large one; empty in older manifests."""

    bytes: int
    sha256: str
    head_sha256: str = ""


_FILES = TypeAdapter(dict[str, StoredFile])


def stored_files(folder: Path) -> dict[str, StoredFile]:
    """Size and hash of all files in the folder but the manifest, by their paths in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    return {path.relative_to(folder).as_posix(): _stored(path) for path in paths}


def check_files(folder: Path, files: Mapping[str, StoredFile], all_hashes: bool = False) -> None:
    """Checks the sizes of all files, the hashes of small ones, and the hashes of the beginnings of large ones.

    Args:
        files: as `stored_files` returned them when the index was built.
        all_hashes: check the hashes of large files too, which takes a second or two per GB.

    Raises:
        IndexMismatch: a file is missing, has another size or another hash; the message names it.
    """
    for name, stored in files.items():
        path = folder / name
        _check_size(path, stored)
        if (all_hashes or stored.bytes <= _SMALL_BYTES) and sha256_of_files([path]) != stored.sha256:
            raise damaged(path, f"its SHA-256 is not the one in {MANIFEST_FILE}")
        if stored.head_sha256 and _head_sha256(path) != stored.head_sha256:
            raise damaged(path, f"the SHA-256 of its beginning is not the one in {MANIFEST_FILE}")


def check_sizes(folder: Path) -> None:
    """Checks that an index has all its files in their sizes, without the libraries that open it.

    Raises:
        IndexMismatch: `folder` is not an index of this version, or a file is missing or has another size.
    """
    try:
        files = _FILES.validate_python(read_index_settings(folder).get("files"))
    except ValidationError as error:
        raise damaged(folder / MANIFEST_FILE, "its `files` are not an index's") from error
    for name, stored in files.items():
        _check_size(folder / name, stored)


def damaged(path: Path, reason: object) -> IndexMismatch:
    """The error of a damaged file of an index, or of a folder of it."""
    index = next((folder for folder in path.parents if (folder / MANIFEST_FILE).is_file()), path.parent)
    return IndexMismatch(
        f"{path} is damaged: {reason}; copy the index again, or build it again (`rerank verify "
        f"{shlex.quote(str(index))}` checks all of its files)"
    )


def _check_size(path: Path, stored: StoredFile) -> None:
    if not path.is_file():
        raise damaged(path, "it is missing")
    if (size := path.stat().st_size) != stored.bytes:
        raise damaged(path, f"it has {size} bytes, but {MANIFEST_FILE} says {stored.bytes}")


def _stored(path: Path) -> StoredFile:
    size = path.stat().st_size
    return StoredFile(size, sha256_of_files([path]), _head_sha256(path) if size > _SMALL_BYTES else "")


def _head_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
