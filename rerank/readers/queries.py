"""Files of queries: BEIR's queries.jsonl, and lines of query_id, tab, text."""

from __future__ import annotations

from pathlib import Path

from rerank.readers.rows import BadRow, distinct, id_of, json_object, parsed_lines, text_of
from rerank.types import Query

_ID_FIELDS = ("_id", "query_id", "qid", "id")
#: Names of the columns in the header of a file with tabs.
_ID_NAMES = {*_ID_FIELDS, "queryid", "topic", "topic_id", "#query_id"}
_TEXT_NAMES = {"query", "text", "query_text", "title", "question"}


def read_queries(path: Path) -> list[Query]:
    """Reads queries; a line that begins with a brace is a JSON object, any other is query_id, tab, text.

    The first line may be a header, such as query_id, tab, text.

    Raises:
        CollectionError: the file or a line of it cannot be read, or two lines give a query different texts; the message
            names the line.
    """
    rows = list(parsed_lines(path, parse_query))
    if rows and _is_header(rows[0][1]):
        del rows[0]
    return list(distinct(path, rows, lambda query: query.query_id, "query", may_repeat=True))


def _is_header(query: Query) -> bool:
    """Returns True if the first line of a file names its columns, such as query_id and text."""
    names = query.query_id.lower().replace("-", "_"), query.text.strip().lower().replace("-", "_")
    return names[0] in _ID_NAMES and names[1] in _TEXT_NAMES


def parse_query(line: str) -> Query:
    """The query in a line. Raises: BadRow."""
    if line.lstrip().startswith("{"):
        row = json_object(line)
        return Query(text_of(row, "text"), query_id=id_of(row, _ID_FIELDS))
    query_id, tab, text = line.partition("\t")
    if not tab or "\t" in text:
        raise BadRow(f"has {line.count(chr(9)) + 1} columns; expected query_id, tab, text, or an object of JSON")
    return Query(text, query_id=query_id)
