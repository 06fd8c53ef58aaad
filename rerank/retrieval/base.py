"""The interface of a first-stage retriever, which finds passages by their rows in the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rerank.types import Query


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A passage that a retriever found: its 0-based row in the index, and its score."""

    row: int
    score: float


class Retriever(Protocol):
    """A first-stage retriever, which finds candidates for queries."""

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredRow]]:
        """For each query its best passages, at most `depth` of them, best first; fewer or none if no more are found."""
        ...
