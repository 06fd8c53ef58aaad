"""Candidates as callers give them: Python objects, and files of JSON lines. One reader for all of them."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path

from rerank.errors import CollectionError
from rerank.readers.lines import parsed_lines
from rerank.readers.rows import (
    BadRow,
    id_of,
    json_object,
    optional_number_of,
    optional_text_of,
    refuse_unknown_fields,
    text_of,
)
from rerank.types import CANDIDATE_FIELDS, CANDIDATE_FORMS, Candidate, CandidateSource

#: Names under which a candidate may have its id, which is a string or an integer.
ID_FIELDS = ("doc_id", "_id", "docid", "id")
_FIELDS = (*ID_FIELDS, "text", "title", "score")


def candidate_source(candidate: object, place: int) -> CandidateSource:
    """Converts a CandidateLike. A plain text gets `place`, its 0-based place in the list, as its doc_id.

    Raises:
        TypeError: it is no CandidateLike.
    """
    try:
        return _source(candidate, str(place))
    except BadRow as error:
        raise TypeError(f"candidates[{place}] {error}") from error


def read_candidates(path: Path) -> list[CandidateSource]:
    """Reads candidates from JSON lines: {"doc_id", "text", "title", "score"}, the last two optional.

    Args:
        path: a file, plain or gzip, or `rerank.readers.lines.STDIN`.

    Raises:
        CollectionError: the file or a line of it cannot be read, or two lines have the same id; the message names the
            line.
    """
    candidates: list[CandidateSource] = []
    line_of: dict[str, int] = {}
    for number, candidate in parsed_lines(path, lambda line: _from_mapping(json_object(line))):
        if (first := line_of.setdefault(candidate.doc_id, number)) != number:
            raise CollectionError(f"{path}:{number} has the doc_id {candidate.doc_id!r} of line {first}; give it once")
        candidates.append(candidate)
    return candidates


def _source(candidate: object, place: str) -> CandidateSource:
    match candidate:
        case CandidateSource():
            return candidate
        case Candidate():
            passage = candidate.passage
            return CandidateSource(passage.doc_id, passage.text, score=candidate.score, title=passage.title)
        case str():
            return _from_mapping({"doc_id": place, "text": candidate})
        case (doc_id, text):
            return _from_mapping({"doc_id": doc_id, "text": text})
        case Mapping():
            return _from_mapping(candidate)
    raise BadRow(f"is {reprlib.repr(candidate)}, but a candidate is {CANDIDATE_FORMS}")


def _from_mapping(row: Mapping[str, object]) -> CandidateSource:
    refuse_unknown_fields(row, _FIELDS, CANDIDATE_FIELDS)
    title = optional_text_of(row, "title").strip()
    return CandidateSource(
        id_of(row, ID_FIELDS), text_of(row, "text"), score=optional_number_of(row, "score"), title=title
    )
