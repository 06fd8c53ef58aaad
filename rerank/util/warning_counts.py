"""Counts the warnings of many replies by kind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Kind:
    first_query: str
    text: str
    count: int = 0


@dataclass(slots=True)
class WarningCounts:
    """Counts warnings; those that differ only in their numbers are of one kind."""

    _kinds: dict[str, _Kind] = field(default_factory=dict)

    def add(self, query: str, warnings: Iterable[str]) -> None:
        """Counts the warnings of the reply to a query.

        Args:
            query: the query's name, for the line of a new kind.
        """
        for text in warnings:
            self._kinds.setdefault(re.sub(r"\d+", "0", text), _Kind(query, text)).count += 1

    def lines(self, replies: int) -> list[str]:
        """One line for each kind, in the order in which the kinds came, with the first warning of the kind.

        Args:
            replies: number of all replies.
        """
        return [
            f"{kind.text} ({kind.count:,} of {replies:,} queries, the first is {kind.first_query})"
            for kind in self._kinds.values()
        ]
