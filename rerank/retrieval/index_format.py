"""The format of an index folder, and the sizes and SHA-256 of its files, checked without the libraries that open it."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

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
#: Files up to this size are hashed whenever the index is opened, which takes some 20 ms for each.
_SMALL_BYTES = 16 * 1024 * 1024
#: Bytes of a larger file that are hashed then: FAISS may end the process, or never return, if the header is damaged.
_HEAD_BYTES = 1024 * 1024


def read_index_settings(folder: Path) -> dict[str, Any]:
    """The content of an index's manifest.json. Raises: IndexMismatch if `folder` has no manifest of this format."""
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
    """Size and SHA-256 of a file.

    Attributes:
        bytes: size of the file.
        sha256: SHA-256 of the file, in hexadecimal digits.
        head_sha256: SHA-256 of the first MiB of a file above 16 MiB; empty for smaller files, and in older manifests.
    """

    bytes: int
    sha256: str
    head_sha256: str = ""


_FILES = TypeAdapter(dict[str, FileDigest])


def file_digests(folder: Path) -> dict[str, FileDigest]:
    """Path in the folder → size and hash, for all files except the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
    return {path.relative_to(folder).as_posix(): _stored(path) for path in paths}


def check_files(folder: Path, files: Mapping[str, FileDigest], all_hashes: bool = False) -> None:
    """Checks the sizes of all files, the hashes of small ones, and the hashes of the beginnings of large ones.

    Args:
        files: result of `file_digests` when the index was built.
        all_hashes: whether the hashes of whole large files are checked, too, which takes a second or two per GB.

    Raises:
        IndexMismatch: a file is missing or has another size or hash; the message names the file.
    """
    for name, stored in files.items():
        path = folder / name
        _check_size(path, stored)
        if (all_hashes or stored.bytes <= _SMALL_BYTES) and sha256_of_files([path]) != stored.sha256:
            raise damaged(path, f"its SHA-256 is not the one in {MANIFEST_FILE}")
        if stored.head_sha256 and _head_sha256(path) != stored.head_sha256:
            raise damaged(path, f"the SHA-256 of its beginning is not the one in {MANIFEST_FILE}")


def check_sizes(folder: Path) -> None:
    """Checks that an index has all its files and that they have their sizes, without the libraries that open it.

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
    """The error for a damaged file or folder of an index, with the reason and the command that checks all files."""
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


class ArrayFile:
    """A NumPy file whose rows are read, and not memory-mapped: a mapped file that is cut ends the process (SIGBUS).

    Args:
        dtype: expected type of the numbers; None for any type.
        dimensions: expected number of dimensions.

    Raises:
        IndexMismatch: the file is missing or cannot be read, or its type or number of dimensions differs.

    Attributes:
        shape: number of rows, and the shape of a row.
        dtype: type of a number.
        first_byte: offset of the first number in the file, in bytes.
        row_bytes: size of a row in bytes.
    """

    def __init__(self, path: Path, dtype: type | None, dimensions: int) -> None:
        self._path = path
        try:
            self._file = path.open("rb")
            self.shape, is_by_columns, self.dtype = _read_header(self._file)
        except OSError as error:
            raise damaged(path, error.strerror or error) from error
        except Exception as error:  # NumPy parses the header as Python, which may raise anything
            raise damaged(path, f"its header cannot be read ({type(error).__name__})") from error
        if len(self.shape) != dimensions or self.dtype.hasobject or (dtype is not None and self.dtype != dtype):
            expected = f"{dimensions} of {'numbers' if dtype is None else np.dtype(dtype)}"
            raise damaged(path, f"it has {len(self.shape)} dimensions of {self.dtype} instead of {expected}")
        if is_by_columns and dimensions > 1:
            raise damaged(path, "its header says that columns follow one another, not rows")
        self.first_byte, self.row_bytes = self._file.tell(), math.prod(self.shape[1:]) * self.dtype.itemsize
        if (size := os.fstat(self._file.fileno()).st_size) < (least := self.first_byte + self.nbytes):
            raise damaged(path, f"it has {size} bytes, and its header says {least}")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size of all rows in bytes."""
        return len(self) * self.row_bytes

    def read(self, first: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """The rows from `first` to before `stop`. Raises: IndexMismatch if the file ends before them."""
        rows = np.empty(((len(self) if stop is None else stop) - first, *self.shape[1:]), self.dtype)
        self.read_into(rows.reshape(-1), first)
        return rows

    def read_into(self, numbers: npt.NDArray[Any], first: int) -> None:
        """Fills a flat array with the numbers from row `first` on. Raises: IndexMismatch if the file ends before."""
        missing, offset = numbers.view(np.uint8).data, self.first_byte + first * self.row_bytes
        while missing:  # the system returns at most 2 GB at a time
            if not (size := os.preadv(self._file.fileno(), [missing], offset)):
                raise damaged(self._path, "it ends too early")
            missing, offset = missing[size:], offset + size


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order (True if columns follow one another) and type of an array; moves to its first number."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)
