"""TREC runs: lines of query_id, Q0, doc_id, rank, score, tag."""

from __future__ import annotations

import reprlib
from pathlib import Path

from rerank.errors import CollectionError
from rerank.readers.lines import parsed_lines
from rerank.readers.rows import BadRow, finite_number
from rerank.readers.trec_ids import columns_of


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Reads a run: query_id → doc_id → score. Ids are read as those of judgements, see `read_qrels`.

    Raises:
        CollectionError: the file or a line of it cannot be read, or two lines have the same passage of a query; the
            message names the line.
    """
    scores: dict[str, dict[str, float]] = {}
    for number, (query_id, doc_id, score) in parsed_lines(path, _row):
        docs = scores.setdefault(query_id, {})
        if doc_id in docs:
            rows = parsed_lines(path, _row)
            first = next(line for line, row in rows if row[:2] == (query_id, doc_id))
            raise CollectionError(
                f"{path}:{number} has the passage {doc_id!r} of query {query_id!r}, which line {first} has; keep one"
            )
        docs[doc_id] = score
    return scores


def _row(line: str) -> tuple[str, str, float]:
    columns = columns_of(line, 6)
    if len(columns) != 6:
        raise BadRow(f"has {len(columns)} columns; expected query_id, Q0, doc_id, rank, score and tag")
    query_id, _, doc_id, _, score, _ = columns
    if not query_id or not doc_id:
        raise BadRow(f"has the query_id {reprlib.repr(query_id)} and the doc_id {reprlib.repr(doc_id)}; give both")
    return query_id, doc_id, finite_number(score, "score")
