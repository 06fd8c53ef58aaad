"""Encodes many texts with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from rich.console import Console

from rerank.commands.progress import with_progress
from rerank.types import Matrix

#: Texts → (N, D) unit vectors.
Encode: TypeAlias = Callable[[Sequence[str]], Matrix]

#: Texts between two updates of the progress bar.
_CHUNK = 512


def encode_texts(encode: Encode, texts: Sequence[str], console: Console) -> Matrix:
    """(len(texts), D) unit vectors. On two CPU cores, some 70 passages per second."""
    chunks = [texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK)]
    return np.concatenate([encode([]), *map(encode, with_progress(chunks, "texts", len(chunks), console))])
