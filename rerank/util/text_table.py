"""A ranking as a short table for `print`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_ROWS = 10
_DOC_ID_CHARS = 24
_TEXT_CHARS = 60


class TableRow(NamedTuple):
    """A result as a row of a table.

    Attributes:
        text: may be empty.
    """

    score: float
    doc_id: str
    text: str


def ranking_table(results: Sequence[TableRow]) -> str:
    """A table of rank, score, doc_id and the beginning of the text, of the first results; the text says how many more.

    Args:
        results: best first.
    """
    if not results:
        return "no results"
    header = ("rank", "score", "doc_id", "text")
    rows = [
        (str(rank), f"{score:.4g}", _start(doc_id, _DOC_ID_CHARS), _start(text, _TEXT_CHARS))
        for rank, (score, doc_id, text) in enumerate(results[:_ROWS], start=1)
    ]
    rank, score, doc_id, _ = (max(map(len, column)) for column in zip(header, *rows, strict=True))
    lines = [f"{a:>{rank}}  {b:>{score}}  {c:<{doc_id}}  {d}".rstrip() for a, b, c, d in (header, *rows)]
    more = len(results) - len(rows)
    return "\n".join([*lines, *([f"… and {more} more"] if more else [])])


def _start(text: str, chars: int) -> str:
    """The beginning of a text on one line, without characters that a terminal obeys."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * chars])
    line = " ".join(shown.split())
    return line if len(line) <= chars and len(text) <= 4 * chars else line[: chars - 1] + "…"
