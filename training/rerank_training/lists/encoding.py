"""Encodes many texts with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np
from rich.console import Console

from rerank.commands.progress import show_progress
from rerank.types import Matrix

#: Texts → (N, D) unit vectors.
Encode: TypeAlias = Callable[[Sequence[str]], Matrix]

#: Texts between two updates of the progress bar.
_CHUNK = 512


def encode_texts(encode: Encode, texts: Sequence[str], console: Console) -> Matrix:
    """(len(texts), D) unit vectors. On two CPU cores, some 70 passages per second."""
    return np.concatenate([encode([]), *encoded_chunks(encode, texts, len(texts), console)])


def encoded_chunks(encode: Encode, texts: Iterable[str], n: int, console: Console) -> Iterator[Matrix]:
    """Unit vectors (C, D) of one chunk of the `n` texts after the other."""
    remaining, done = iter(texts), 0
    with show_progress(console, "texts") as progress:
        while chunk := list(islice(remaining, _CHUNK)):
            yield encode(chunk)
            done += len(chunk)
            progress.report("vectors", done, n)
