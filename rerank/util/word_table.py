"""Document frequencies: how many passages of a collection have a word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WordTable:
    """Document frequencies of stems in a collection of passages.

    Attributes:
        passages: number of passages.
        frequencies: stem → number of passages that have it; rare stems may be missing.
        sha256: SHA-256 of the table's file; empty if it has none.
        rare: the frequency that a missing stem is given: half of the lowest frequency in the table. With 0, a name
            would weigh twice as much as the words around it.
    """

    passages: int
    frequencies: Mapping[str, int]
    sha256: str = ""
    rare: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rare", min(self.frequencies.values(), default=0) / 2)

    def idf(self, stem: str) -> float:
        """log(1 + (N - df + .5) / (df + .5)), as Lucene computes it, for a stem of df passages among N."""
        frequency = self.frequencies.get(stem, self.rare)
        return math.log1p((self.passages - frequency + 0.5) / (frequency + 0.5))
