"""Warnings of many replies, said once for each kind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Kind:
    first: str
    text: str
    count: int = 0


@dataclass(slots=True)
class WarningCounts:
    """Counts warnings that differ in nothing but their numbers."""

    _kinds: dict[str, _Kind] = field(default_factory=dict)

    def add(self, query: str, warnings: Iterable[str]) -> None:
        """Counts the warnings of the reply to a query, which is named if it is the first of their kind."""
        for text in warnings:
            self._kinds.setdefault(re.sub(r"\d+", "0", text), _Kind(query, text)).count += 1

    def lines(self, replies: int) -> list[str]:
        """The kinds in the order in which they came, with the first warning of each.

        Args:
            replies: number of all replies.
        """
        return [
            f"{kind.text} ({kind.count:,} of {replies:,} queries, the first is {kind.first})"
            for kind in self._kinds.values()
        ]
