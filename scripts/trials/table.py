"""Markdown tables of the trials."""

from __future__ import annotations

from collections import Counter


def header(*columns: str) -> str:
    """The first two lines of a table."""
    return f"{row(*columns)}\n{row(*['---'] * len(columns))}"


def row(*cells: object) -> str:
    """One line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def counts(ends: Counter[str]) -> str:
    """The numbers of calls by the way in which they ended, such as "1 CANCELLED, 3 OK"."""
    return ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
