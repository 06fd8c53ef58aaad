"""Encodes many texts with a progress bar, and keeps the vectors of a training's texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np
from rich.console import Console

from rerank.commands.progress import show_progress
from rerank.types import Matrix
from rerank_training.lists.training_list import TrainingList

#: Texts → (N, D) unit vectors.
Encode: TypeAlias = Callable[[Sequence[str]], Matrix]

#: Texts between two updates of the progress bar.
_CHUNK = 512


def encode_texts(encode: Encode, texts: Sequence[str], console: Console) -> Matrix:
    """(len(texts), D) unit vectors. On two CPU cores, some 70 passages per second."""
    vectors = [encode([])]
    with show_progress(console, "texts") as progress:
        for start in range(0, len(texts), _CHUNK):
            vectors.append(encode(texts[start : start + _CHUNK]))
            progress.report("texts", min(start + _CHUNK, len(texts)), len(texts))
    return np.concatenate(vectors)


def texts_of(parts: Iterable[Sequence[TrainingList]], kind: Literal["queries", "passages"]) -> Iterator[str]:
    """The texts of the queries, or of the passages, of several sequences of lists, with duplicates."""
    for item in chain.from_iterable(parts):
        yield from (text.text for text in ([item.query] if kind == "queries" else item.passages))


class VectorTable:
    """The unit vectors of a set of texts, computed once, with a progress bar, and kept in memory.

    Args:
        encode: `encode_queries` or `encode_passages` of an encoder.
        texts: the texts, which may repeat.
    """

    def __init__(self, encode: Encode, texts: Iterable[str], console: Console) -> None:
        self._row = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        self._vectors = encode_texts(encode, list(self._row), console)

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """(len(texts), D) unit vectors. Raises: KeyError if a text is not one of the set."""
        return self._vectors[[self._row[text] for text in texts]]
