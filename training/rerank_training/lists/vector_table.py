"""The vectors of a training's texts, computed once and kept on the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import numpy as np
from rich.console import Console

from rerank.errors import ConfigError
from rerank.types import Matrix
from rerank_training.lists.encoding import Encode, encoded_chunks
from rerank_training.lists.training_list import TrainingList


@dataclass(frozen=True)
class ListTexts:
    """The texts of the queries, or of the passages, of lists, with duplicates. The lists are read in each iteration.

    Args:
        parts: several sequences of lists.
    """

    parts: Sequence[Sequence[TrainingList]]
    of: Literal["queries", "passages"]

    def __iter__(self) -> Iterator[str]:
        for item in chain.from_iterable(self.parts):
            yield from (text.text for text in ([item.query] if self.of == "queries" else item.passages))


class VectorTable:
    """The unit vectors of a set of texts, computed once, with a progress bar.

    In memory are hashes of the texts. The vectors are in a file without a name, which ends with the process.

    Args:
        encode: `encode_queries` or `encode_passages` of an encoder.
        texts: one or more, with duplicates; iterated twice.
        folder: on the disk of the file.

    Raises:
        ConfigError: the disk is full.
    """

    def __init__(self, encode: Encode, texts: Iterable[str], console: Console, folder: Path) -> None:
        self._row: dict[bytes, int] = {}
        for text in texts:
            self._row.setdefault(_digest(text), len(self._row))
        try:
            with TemporaryFile(dir=folder) as file:
                for chunk in encoded_chunks(encode, self._distinct(texts), len(self._row), console):
                    file.write(chunk.tobytes())
                file.flush()
                self._vectors = np.memmap(file, dtype=np.float32, mode="r").reshape(len(self._row), -1)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot hold the vectors of {len(self._row):,} texts: {error}; free disk space, or choose "
                "another --output-dir"
            ) from error

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """(len(texts), E)."""
        return np.asarray(self._vectors[[self._row[_digest(text)] for text in texts]])

    def _distinct(self, texts: Iterable[str]) -> Iterator[str]:
        """The first of equal texts, in the order of their rows."""
        rows = 0
        for text in texts:
            if self._row[_digest(text)] == rows:
                rows += 1
                yield text


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
