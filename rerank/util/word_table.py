"""Document frequencies: how many passages of a collection have a word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WordTable:
    """Document frequencies of stems in a collection of passages.

    Attributes:
        passages: their number.
        frequencies: stem → the number of passages that have it; rare stems may be left out.
        sha256: of the file that the table was read from; empty if there is none.
        rare: the frequency of a stem that is left out: half of the lowest of the others, as 0 would make a name
            count twice as much as the words around it.
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
