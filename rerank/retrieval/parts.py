"""Parts of the vectors of an index: a build writes the arrays of each finished shard to one file, and joins the files.

A part gets its name when it is complete and on disk, so that a killed build resumes with the finished parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank.util.files import atomic_file


def write_part(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes the arrays of a part, which are on disk when the function returns. Raises: OSError if the disk is full."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy's stubs take a name for `allow_pickle`


def read_parts(parts: Sequence[Path], name: str) -> Iterator[npt.NDArray[Any]]:
    """The array `name` of each part, which are read one by one."""
    for path in parts:
        with np.load(path) as arrays:
            yield arrays[name]


def join_parts(parts: Sequence[Path], name: str, path: Path) -> None:
    """Writes the rows of the array `name` of all parts, in their order, to a NumPy file.

    The parts are read twice and one by one, so that the memory does not depend on their number.

    Args:
        parts: one or more files, whose arrays have the same type and the same shape of a row.

    Raises:
        OSError: the disk is full.
    """
    first = next(read_parts(parts, name))
    rows = sum(len(array) for array in read_parts(parts, name))
    shape, dtype = (rows, *first.shape[1:]), np.lib.format.dtype_to_descr(first.dtype)
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for array in read_parts(parts, name):
            file.write(array.tobytes())
