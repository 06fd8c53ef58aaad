"""Request files of RankLLM: queries with their candidates in first-stage order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank.readers.lines import parsed_lines
from rerank.readers.rows import (
    BadRow,
    as_object,
    id_of,
    json_object,
    list_of,
    missing,
    object_of,
    optional_number_of,
    optional_text_of,
    text_of,
    within,
)
from rerank.types import CandidateSource, Query

#: Names of the text field in the documents of different indexes, in RankLLM's order of preference.
_TEXT_FIELDS = ("text", "segment", "contents", "content", "body", "passage")
#: query_id Q0 doc_id rank score tag
_RUN_LINE = re.compile(r"[^\s{]\S*\s+\S+\s+\S+\s+\d+\s+[-+\d.eE]+\s+\S+")
_QUERY_ID_FIELDS = ("qid", "query_id", "_id", "id")
_CANDIDATE_ID_FIELDS = ("docid", "doc_id", "_id", "id")


@dataclass(frozen=True, slots=True)
class Request:
    """A query and its candidates in first-stage order."""

    query: Query
    candidates: tuple[CandidateSource, ...]


def read_requests(path: Path) -> list[Request]:
    """Reads JSON lines: {"query": {"qid", "text"}, "candidates": [{"docid", "score", "doc"}]}.

    A `doc` is a text, or an object with the text and, optionally, a "title", which is put before the text. Other fields
    are ignored.

    Raises:
        CollectionError: the file or a line of it cannot be read; the message names the line.
    """
    return [request for _, request in parsed_lines(path, lambda line: parse_request(request_row(line)))]


def request_row(line: str) -> Mapping[str, Any]:
    """The JSON object in a line. Raises: BadRow."""
    try:
        return json_object(line)
    except BadRow as error:
        if not _RUN_LINE.fullmatch(line.strip()):
            raise
        raise BadRow(
            "is a line of a TREC run, which has no texts; eval-trec-dl takes them from a collection (--collection "
            "NAME), and other commands read request files in RankLLM's form"
        ) from error


def parse_request(row: object) -> Request:
    """The request in one row of a file. Raises: BadRow."""
    row = as_object(row)
    query = object_of(row, "query")
    with within("query"):
        asked = Query(text_of(query, "text"), query_id=id_of(query, _QUERY_ID_FIELDS))
    return Request(asked, tuple(_candidate(each, place) for place, each in enumerate(list_of(row, "candidates"))))


def _candidate(candidate: object, place: int) -> CandidateSource:
    with within(f"candidates[{place}]"):
        row = as_object(candidate)
        doc_id, score = id_of(row, _CANDIDATE_ID_FIELDS), optional_number_of(row, "score")
        if isinstance(row.get("doc"), str):
            return CandidateSource(doc_id, text_of(row, "doc"), score=score)
        doc = object_of(row, "doc")
        with within("doc"):
            title = optional_text_of(doc, "title")
            return CandidateSource(doc_id, _joined(title, _text(doc)), score=score, title=title)


def _text(doc: Mapping[str, Any]) -> str:
    field = next((name for name in _TEXT_FIELDS if name in doc), None)
    if field is None:
        raise missing(" or ".join(_TEXT_FIELDS), doc)
    return text_of(doc, field)


def _joined(title: str, text: str) -> str:
    """Title and text, as the figures of these files are measured: also where the text repeats its title."""
    return f"{title} {text}" if title else text
