"""Opens the NumPy files of an index, and takes their space on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerank.retrieval.integrity import damaged


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


def reserve(path: Path) -> None:
    """Takes the space of a file that consists of holes, so that no later write to it finds the disk full.

    Raises:
        OSError: there is not enough space.
    """
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
