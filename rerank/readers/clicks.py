"""Clicks of users, read as relevance judgements: lines of query, doc_id, clicks and optionally impressions."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rerank.readers.lines import parsed_lines
from rerank.readers.qrels import Qrel
from rerank.readers.rows import BadRow

#: Added to the impressions of every passage, so that one click on one impression does not make a perfect rate.
_MORE_IMPRESSIONS = 10
#: From this share of the query's highest click rate on, the grade is 2.
_BEST_SHARE = 0.5


class _Clicks(NamedTuple):
    """Clicks on a passage in the results of a query; 0 impressions if the file does not have them."""

    query: str
    doc_id: str
    clicks: int
    impressions: int


def read_clicks(path: Path) -> list[Qrel]:
    """Reads clicks and grades them; the first column becomes the query_id.

    Lines are query, doc_id, clicks and, in all of them or in none, impressions, with tabs between; the first line may
    be a header. Counts of a pair that occurs again are added. The click rate is clicks / (impressions + 10), or without
    impressions the clicks. Grades: 0 without a click, 2 from half of the query's highest rate on, 1 below it.

    Raises:
        CollectionError: the file or a line of it cannot be read; the message names the line.
    """
    columns = _ClickColumns()
    return _graded(row for _, row in parsed_lines(path, columns.clicks) if row is not None)


def _graded(rows: Iterable[_Clicks]) -> list[Qrel]:
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for row in rows:
        docs = counts.setdefault(row.query, {})
        clicks, impressions = docs.get(row.doc_id, (0, 0))
        docs[row.doc_id] = clicks + row.clicks, impressions + row.impressions
    rates = {
        query: {doc_id: clicks / (shown + _MORE_IMPRESSIONS) for doc_id, (clicks, shown) in docs.items()}
        for query, docs in counts.items()
    }
    return [
        Qrel(query, doc_id, _grade(rate, max(of_docs.values())))
        for query, of_docs in rates.items()
        for doc_id, rate in of_docs.items()
    ]


def _grade(rate: float, highest: float) -> int:
    return 0 if rate == 0 else 2 if rate >= _BEST_SHARE * highest else 1


class _ClickColumns:
    """The columns of a file, three or four, which its first line decides."""

    def __init__(self) -> None:
        self._columns = 0

    def clicks(self, line: str) -> _Clicks | None:
        """The clicks in a line; None for the header. Raises: BadRow."""
        columns = [column.strip() for column in line.split("\t")]
        is_first, self._columns = not self._columns, self._columns or len(columns)
        if len(columns) != self._columns or len(columns) not in (3, 4):
            raise BadRow(
                f"has {len(columns)} columns; expected query, doc_id, clicks and optionally impressions, with tabs "
                "between, in all lines the same"
            )
        query, doc_id, *counts = columns
        if is_first and counts[0].isidentifier():
            return None
        if not query or not doc_id:
            raise BadRow(f"has the query {reprlib.repr(query)} and the doc_id {reprlib.repr(doc_id)}; give both")
        clicks, impressions = _count(counts[0]), _count(counts[1]) if counts[1:] else 0
        if counts[1:] and impressions < clicks:
            raise BadRow(f"has {clicks} clicks and {impressions} impressions; a click needs an impression")
        return _Clicks(query, doc_id, clicks, impressions)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadRow(f"has the count {reprlib.repr(text)}; expected a whole number from 0 on")
    return int(text)
