"""The queries that are asked: all judged ones, those of a file, or the first few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rerank.errors import CollectionError
from rerank.readers.lines import distinct, parsed_lines
from rerank.readers.qrels import Qrel
from rerank.readers.queries import parse_query
from rerank.types import Query
from rerank_eval.settings import EvaluationSettings


def select(
    queries: Mapping[str, Query], qrels: Sequence[Qrel], settings: EvaluationSettings
) -> tuple[dict[str, Query], tuple[str, ...]]:
    """The queries that are asked by query_id, in their order, and a note if those of --queries are not all there.

    Raises:
        CollectionError: --queries cannot be read, or names none of the queries.
    """
    asked, notes = dict(queries), list[str]()
    if settings.queries:
        wanted = _read(settings.queries)
        asked = {
            query_id: _with_text(query, wanted[query_id]) for query_id, query in queries.items() if query_id in wanted
        }
        if not asked:
            raise CollectionError(
                f"{settings.queries} names none of the {len(queries)} queries; its ids are like "
                f"{next(iter(wanted), '')!r}, theirs like {next(iter(queries), '')!r}"
            )
        if missing := len(wanted) - len(asked):
            notes.append(
                f"{missing} of {len(wanted)} queries of {settings.queries} are not among those with candidates."
            )
    if settings.limit:
        judged = {qrel.query_id for qrel in qrels}
        asked = dict(islice(((q, query) for q, query in asked.items() if q in judged), settings.limit))
    return asked, tuple(notes)


def _read(path: Path) -> dict[str, str]:
    """Texts by query_id; empty where the file has the id alone."""
    rows = parsed_lines(
        path, lambda line: parse_query(line) if "\t" in line or "{" in line else Query("", line.strip())
    )
    return {query.query_id: query.text for query in distinct(path, rows, lambda query: query.query_id, "query")}


def _with_text(query: Query, text: str) -> Query:
    return replace(query, text=text) if text else query
