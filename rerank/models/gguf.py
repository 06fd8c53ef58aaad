"""Lets transformers read GGUF files, whose weights it dequantises by the package `gguf`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rerank.errors import CheckpointError


def gguf_options(checkpoint: Path) -> dict[str, str]:
    """Returns the arguments with which `from_pretrained` reads a GGUF file; none for another checkpoint.

    Raises:
        CheckpointError: there is no such file, or the package `gguf` is not installed.
    """
    if checkpoint.suffix != ".gguf":
        return {}
    if not checkpoint.is_file():
        raise CheckpointError(f"there is no file {checkpoint}; give a GGUF file, or the folder of a checkpoint")
    if importlib.util.find_spec("gguf") is None:
        raise CheckpointError(f"{checkpoint} needs the package gguf to be read; pip install gguf")
    return {"gguf_file": checkpoint.name}
