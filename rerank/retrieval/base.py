"""What a first stage is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rerank.types import Query, ScoredDoc


class Retriever(Protocol):
    """Finds candidates for queries."""

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredDoc]]:
        """For each query at most `depth` passages, best first; fewer, or none, when no more are found."""
        ...
