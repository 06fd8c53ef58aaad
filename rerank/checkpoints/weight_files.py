"""Checks that files of weights are whole and hold tensors only, without loading them."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rerank.errors import CheckpointError

#: Packages whose functions pickled tensors name; torch itself decides which ones.
_OF_TENSORS = ("torch", "collections", "numpy", "_codecs")
_MAX_PICKLE_BYTES = 64 * 1024 * 1024


def check_weights(folder: Path) -> None:
    """Checks the headers of the weights in a folder. Weights themselves are not read.

    Raises:
        CheckpointError: a file is cut or in another format, or holds pickled objects that are not tensors.
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "numpy"):
                pass
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; copy the checkpoint again") from error
    if any(folder.glob("*.safetensors")):
        return  # which the libraries prefer
    for path in sorted(folder.glob("*.bin")):
        try:
            foreign = _foreign(path)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; copy the checkpoint again") from error
        if foreign:
            raise CheckpointError(
                f"{path} holds {foreign}, and only tensors are read from pickled weights; use a checkpoint in the "
                "format of safetensors"
            )


def _foreign(path: Path) -> str:
    """Returns a name in pickled weights that tensors do not have, or an empty text. It skips the old format."""
    if not zipfile.is_zipfile(path):
        return ""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith("/data.pkl"):
                if entry.file_size > _MAX_PICKLE_BYTES:
                    raise ValueError(f"its index has {entry.file_size} bytes, at most {_MAX_PICKLE_BYTES} are read")
                for operation, argument, _ in pickletools.genops(archive.read(entry)):
                    if operation.name == "GLOBAL" and str(argument).split(".")[0].split()[0] not in _OF_TENSORS:
                        return str(argument).replace(" ", ".")
    return ""
