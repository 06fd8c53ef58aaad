"""Reads candidates from Python objects, from files of candidates, and from RankLLM's request files, with queries."""

from __future__ import annotations

import logging
import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rerank.errors import InvalidRequest
from rerank.readers.rows import (
    DOC_ID_FIELDS,
    TEXT_FIELDS,
    BadRow,
    as_object,
    distinct,
    id_of,
    id_value,
    json_object,
    json_rows,
    list_of,
    listed,
    object_of,
    optional_number_of,
    optional_text_of,
    passage_of_row,
    text_field_of,
    text_of,
    text_value,
    within,
)
from rerank.types import CANDIDATE_FORMS, Passage, Query

log = logging.getLogger(__name__)

#: Names of the fields of a candidate.
FIELDS = (*DOC_ID_FIELDS, *TEXT_FIELDS, "title", "score")
#: query_id Q0 doc_id rank score tag
_RUN_LINE = re.compile(r"[^\s{]\S*\s+\S+\s+\S+\s+\d+\s+[-+\d.eE]+\s+\S+")
_QUERY_ID_FIELDS = ("qid", "query_id", "_id", "id")


@dataclass(frozen=True, slots=True)
class CandidateList:
    """A query and its candidates in first-stage order."""

    query: Query
    candidates: tuple[Passage, ...]


def passage_of(candidate: object, index: int) -> Passage:
    """Converts a CandidateLike. A plain text, or a dict without an id, gets its position `index` as its doc_id, from 0.

    Further fields of a dict are ignored, with a warning in the log.

    Raises:
        InvalidRequest: `candidate` is not a CandidateLike.
    """
    try:
        return _passage(candidate, str(index))
    except BadRow as error:
        raise InvalidRequest(f"candidates[{index}]", str(error)) from error


def read_candidates(path: Path) -> list[Passage]:
    """Reads candidates: objects {"doc_id", "text", "title", "score"}, one per line or in one array.

    The title and the score are optional. Further fields are ignored, with one warning in the log for the whole file.

    Args:
        path: a file, plain or gzip, or `rerank.readers.rows.STDIN`.

    Raises:
        CollectionError: the file or a line of it cannot be read, or two lines have the same id; the message names the
            line.
    """
    ignored: dict[str, None] = {}

    def parse(row: Mapping[str, object]) -> Passage:
        ignored.update(dict.fromkeys(name for name in row if name not in FIELDS))
        return _from_mapping(row)

    candidates = list(distinct(path, json_rows(path, parse), lambda candidate: candidate.doc_id, "doc_id"))
    if ignored:
        log.warning("%s: fields that are not read: %s", path, listed(ignored))
    return candidates


def _passage(candidate: object, index: str) -> Passage:
    match candidate:
        case Passage():
            return candidate
        case str():
            return Passage(index, text_value(candidate, "text"))
        case (doc_id, text):
            return Passage(id_value(doc_id, "doc_id"), text_value(text, "text"))
        case Mapping():
            if unread := candidate.keys() - set(FIELDS):
                _warn_once(listed(sorted(map(str, unread))))
            has_id = any(name in candidate for name in DOC_ID_FIELDS)
            return _from_mapping(candidate if has_id else {"doc_id": index, **candidate})
    raise BadRow(f"is {reprlib.repr(candidate)}, but a candidate is {CANDIDATE_FORMS}")


@lru_cache(maxsize=100)
def _warn_once(fields: str) -> None:
    log.warning("candidates: fields that are not read: %s", fields)


def _from_mapping(row: Mapping[str, object]) -> Passage:
    doc_id, text, title = passage_of_row(row, DOC_ID_FIELDS)
    return Passage(doc_id, text, score=optional_number_of(row, "score"), title=title.strip())


def read_requests(path: Path) -> list[CandidateList]:
    """Reads requests: {"query": {"qid", "text"}, "candidates": [{"docid", "score", "doc"}]}, by line or in an array.

    A `doc` is a text, or an object with the text and, optionally, a "title", which is put before the text. RankLLM's
    older form is read, too: {"query": text, "hits": [{"qid", "docid", "score", "content"}]}. Other fields are ignored.

    Raises:
        CollectionError: the file or a row of it cannot be read, two rows have the same query id, or two candidates of
            a row the same id; the message names the line.
    """
    rows = json_rows(path, lambda row: _without_repeats(parse_request(row)), _request_object)
    return list(distinct(path, rows, lambda request: request.query.query_id, "query"))


def request_rows(path: Path) -> Iterator[tuple[Mapping[str, Any], CandidateList]]:
    """Pairs of a row of a request file, in RankLLM's newer form, and the request in it.

    Queries and candidates may repeat.

    Raises:
        CollectionError: the file or a row of it cannot be read; the message names the line.
    """

    def parse(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], CandidateList]:
        row = _newer_form(row)
        return row, parse_request(row)

    return (row for _, row in json_rows(path, parse, _request_object))


def parse_request(row: object) -> CandidateList:
    """The request in one row of a file. Raises: BadRow."""
    row = _newer_form(as_object(row))
    fields = object_of(row, "query")
    with within("query"):
        query = Query(text_of(fields, "text"), query_id=id_of(fields, _QUERY_ID_FIELDS))
    return CandidateList(
        query, tuple(_candidate(candidate, index) for index, candidate in enumerate(list_of(row, "candidates")))
    )


def _request_object(line: str) -> Mapping[str, Any]:
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


def _newer_form(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Converts a row in RankLLM's older form, whose hits have the query's id, to the newer form; keeps other rows."""
    if "hits" not in row or "candidates" in row:
        return row
    query_ids, candidates = set[str](), []
    for index, hit in enumerate(list_of(row, "hits")):
        with within(f"hits[{index}]"):
            doc_id, text = id_of(as_object(hit), DOC_ID_FIELDS), text_of(hit, "content")
            candidates.append({"docid": doc_id, "score": hit.get("score"), "doc": {"content": text}})
            query_ids.add(id_of(hit, _QUERY_ID_FIELDS[:2]))
    if len(query_ids) != 1:
        problem = f"of {len(query_ids)} queries" if query_ids else "none, and so no id of its query"
        raise BadRow(f"has hits {problem}; give hits of one query")
    return {"query": {"qid": query_ids.pop(), "text": text_of(row, "query")}, "candidates": candidates}


def _without_repeats(request: CandidateList) -> CandidateList:
    """The request. Raises: BadRow if two of its candidates have the same id."""
    indices: dict[str, int] = {}
    for index, candidate in enumerate(request.candidates):
        if (first := indices.setdefault(candidate.doc_id, index)) != index:
            raise BadRow(f"has {candidate.doc_id!r} as candidates[{first}] and candidates[{index}]; give it once")
    return request


def _candidate(candidate: object, index: int) -> Passage:
    with within(f"candidates[{index}]"):
        row = as_object(candidate)
        doc_id, score = id_of(row, DOC_ID_FIELDS), optional_number_of(row, "score")
        if isinstance(row.get("doc"), str):
            return Passage(doc_id, text_of(row, "doc"), score=score)
        doc = object_of(row, "doc")
        with within("doc"):
            title = optional_text_of(doc, "title")
            return Passage(doc_id, _joined(title, text_of(doc, text_field_of(doc))), score=score, title=title)


def _joined(title: str, text: str) -> str:
    """Title and text joined, even if the text repeats the title, as in the published figures of these files."""
    return f"{title} {text}" if title else text
