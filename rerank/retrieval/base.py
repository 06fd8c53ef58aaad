"""The interface of a first-stage retriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rerank.types import Query, ScoredDoc


class Retriever(Protocol):
    """A first-stage retriever, which finds candidates for queries."""

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredDoc]]:
        """For each query its best passages, at most `depth` of them, best first; fewer or none if no more are found."""
        ...
