"""A ranking as a short table: plain text for `print`, HTML for a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_ROWS = 10
_DOC_ID_CHARS = 24
_TEXT_CHARS = 60
#: Characters of a text in HTML, and of what stands before its marked part.
_HTML_CHARS, _BEFORE_MARK = 300, 80


class TableRow(NamedTuple):
    """A result as a row of a table.

    Attributes:
        text: may be empty.
        span: start and end of the part of the text that decided, in characters; None if it is not known.
    """

    score: float
    doc_id: str
    text: str
    span: tuple[int, int] | None = None


class ShownAsTable(ABC):
    """Base class of results that `print` and notebooks show as a table."""

    __slots__ = ()

    @abstractmethod
    def table_rows(self) -> list[TableRow]:
        """The results, best first."""

    def __str__(self) -> str:
        """A short table of rank, score, doc_id and the beginning of the text."""
        return ranking_table(self.table_rows())

    def _repr_html_(self) -> str:
        """The same as HTML, which notebooks show, with the part of each text marked that decided."""
        return ranking_html(self.table_rows())


def ranking_html(results: Sequence[TableRow]) -> str:
    """A table in HTML of the first results, as `ranking_table` has them, with more of their texts."""
    if not results:
        return "<p>no results</p>"
    rows = [
        f"<tr><td>{rank}</td><td>{row.score:.4g}</td><td>{escape(_start(row.doc_id, _DOC_ID_CHARS))}</td>"
        f'<td style="text-align: left">{_marked(row.text, row.span)}</td></tr>'
        for rank, row in enumerate(results[:_ROWS], start=1)
    ]
    head = "".join(f"<th>{name}</th>" for name in ("rank", "score", "doc_id", "text"))
    more = f"<p>… and {len(results) - _ROWS} more</p>" if len(results) > _ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"


def _marked(text: str, span: tuple[int, int] | None) -> str:
    """The beginning of a text in HTML; with a span, that of the part around it, which is marked."""
    if span is None:
        return escape(_start(text, _HTML_CHARS))
    start, end = span
    before = _start(text[max(0, start - _BEFORE_MARK) : start], _BEFORE_MARK)
    mark, after = _start(text[start:end], _HTML_CHARS), _start(text[end : end + _BEFORE_MARK], _BEFORE_MARK)
    parts = ("…" if start > _BEFORE_MARK else "", before, f"<mark>{escape(mark)}</mark>", after)
    shown = " ".join(part if part.startswith("<mark>") else escape(part) for part in parts if part)
    return shown + ("…" if len(text) > end + _BEFORE_MARK else "")


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
        for rank, (score, doc_id, text, _) in enumerate(results[:_ROWS], start=1)
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
