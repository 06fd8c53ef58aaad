"""Shows texts of others on a terminal, with control characters escaped, and a ranking as a short table."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

#: Control characters except tab and line feed, characters that reverse the direction of writing, and lone surrogates.
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: The size of a ranking's table: rows, and characters of a doc_id and of a text.
_ROWS, _DOC_ID_CHARS, _TEXT_CHARS = 10, 24, 60


def escape_control_chars(text: str) -> str:
    """The text with control characters as JSON writes them, such as \\u001b for escape. A JSON text stays valid."""
    return _CONTROL_CHARS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class EscapingFormatter(logging.Formatter):
    """Formats log messages so that what they quote cannot steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_control_chars(super().format(record))


class TableRow(NamedTuple):
    """A result as a row of a table; the text may be empty."""

    score: float
    doc_id: str
    text: str


def ranking_table(results: Sequence[TableRow]) -> str:
    """A table of the first ten results with rank, score, doc_id and the beginning of the text; its end counts the rest.

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
