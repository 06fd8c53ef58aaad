"""The format of an index folder, and the sizes and SHA-256 of its files, checked without the libraries that open it."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from rerank.errors import ConfigError, IndexMismatch
from rerank.util.files import denied, missing_path_hint, sha256_of_files
from rerank.util.json_files import read_json

FORMAT = "rerank-index-3"
MANIFEST_FILE = "manifest.json"

#: Kinds of dense search: exact, or approximate by an HNSW graph.
DenseKind: TypeAlias = Literal["flat", "hnsw"]
#: Files up to this size are hashed whenever the index is opened, in some 20 ms each.
_SMALL_BYTES = 16 * 1024 * 1024
#: Of larger files, the beginning is: with a damaged header, FAISS may end the process or not return.
_HEAD_BYTES = 1024 * 1024


def read_index_settings(folder: Path) -> dict[str, Any]:
    """The content of an index's manifest.json. Raises: IndexMismatch when `folder` has none of this format."""
    path = folder / MANIFEST_FILE
    if problem := denied(path):
        raise IndexMismatch(problem)
    if not path.is_file():
        raise IndexMismatch(
            f"{folder} is not an index: it has no {MANIFEST_FILE}{missing_path_hint(folder)}; build one with "
            f"`rerank index --collection COLLECTION --out {shlex.quote(str(folder))}`"
        )
    try:
        settings = read_json(path)
    except ConfigError as error:
        raise IndexMismatch(f"{error}; build the index again") from error
    if (found := settings.get("format")) != FORMAT:
        raise IndexMismatch(f"{folder} has format {found}, but this version reads {FORMAT}; build the index again")
    return settings


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size and hash of a file, and the hash of the first MiB of a large one; empty in older manifests."""

    bytes: int
    sha256: str
    head_sha256: str = ""


_FILES = TypeAdapter(dict[str, FileDigest])


def file_digests(folder: Path) -> dict[str, FileDigest]:
    """Size and hash of all files in the folder but the manifest, by their paths in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    return {path.relative_to(folder).as_posix(): _stored(path) for path in paths}


def check_files(folder: Path, files: Mapping[str, FileDigest], all_hashes: bool = False) -> None:
    """Checks the sizes of all files, the hashes of small ones, and the hashes of the beginnings of large ones.

    Args:
        files: as `file_digests` returned them when the index was built.
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


def _check_size(path: Path, stored: FileDigest) -> None:
    if problem := denied(path):
        raise IndexMismatch(problem)
    if not path.is_file():
        raise damaged(path, "it is missing")
    if (size := path.stat().st_size) != stored.bytes:
        raise damaged(path, f"it has {size} bytes, but {MANIFEST_FILE} says {stored.bytes}")


def _stored(path: Path) -> FileDigest:
    size = path.stat().st_size
    return FileDigest(size, sha256_of_files([path]), _head_sha256(path) if size > _SMALL_BYTES else "")


def _head_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()


def open_array(path: Path, dtype: type | None, dimensions: int) -> npt.NDArray[Any]:
    """The memory-mapped array of a file.

    Args:
        dtype: of its numbers; None: any.

    Raises:
        IndexMismatch: the file is missing, cannot be read, or has another form.
    """
    try:
        array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise damaged(path, error.strerror or error) from error
    except Exception as error:  # NumPy parses the header as Python, which may raise anything
        raise damaged(path, f"its header cannot be read ({type(error).__name__})") from error
    if array.ndim != dimensions or (dtype is not None and array.dtype != dtype):
        expected = f"{dimensions} of {np.dtype(dtype)}"
        raise damaged(path, f"it has {array.ndim} dimensions of {array.dtype} instead of {expected}")
    if not array.flags.c_contiguous:
        raise damaged(path, "its header says that columns follow one another, not rows")
    return array


class ArrayFile:
    """A NumPy file whose rows are read without being mapped. Raises: IndexMismatch, see `open_array`.

    Attributes:
        mapped: memory-mapped; what was read of it counts as resident memory of the process.
    """

    def __init__(self, path: Path, dtype: type | None, dimensions: int) -> None:
        self.mapped = open_array(path, dtype, dimensions)
        self._path, self._file = path, path.open("rb")
        self._first_byte = path.stat().st_size - self.mapped.nbytes

    def read(self, first: int, stop: int) -> npt.NDArray[Any]:
        """The rows from `first` to before `stop`. Raises: IndexMismatch if the file ends before them."""
        rows = np.empty((stop - first, *self.mapped.shape[1:]), self.mapped.dtype)
        self.read_into(rows.reshape(-1), first)
        return rows

    def read_into(self, numbers: npt.NDArray[Any], first: int) -> None:
        """Fills a flat array with what begins at the row `first`. Raises: see `read`."""
        missing, offset = numbers.view(np.uint8).data, self._first_byte + first * self.mapped.strides[0]
        while missing:  # the system returns at most 2 GB at a time
            if not (size := os.preadv(self._file.fileno(), [missing], offset)):
                raise damaged(self._path, "it ends too early")
            missing, offset = missing[size:], offset + size


def reserve(path: Path) -> None:
    """Takes the space of a file that consists of holes, so that no later write to it finds the disk full.

    Raises:
        OSError: there is not enough space.
    """
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
