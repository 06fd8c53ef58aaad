"""Reads candidates from Python objects and from files of JSON lines."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from rerank.errors import InvalidRequest
from rerank.readers.lines import distinct, json_rows
from rerank.readers.rows import BadRow, listed, optional_number_of, passage_of_row
from rerank.types import CANDIDATE_FORMS, Passage

log = logging.getLogger(__name__)

#: Names of the field with the id of a candidate, a string or an integer; and of all its fields.
_ID_FIELDS = ("doc_id", "_id", "docid", "id")
FIELDS = (*_ID_FIELDS, "text", "title", "score")


def passage_of(candidate: object, place: int) -> Passage:
    """Converts a CandidateLike. A plain text, or a dict without an id, gets `place`, its 0-based place, as its doc_id.

    Further fields of a dict are ignored, with a warning in the log.

    Raises:
        InvalidRequest: it is not a CandidateLike.
    """
    try:
        return _passage(candidate, str(place))
    except BadRow as error:
        raise InvalidRequest(f"candidates[{place}]", str(error)) from error


def read_candidates(path: Path) -> list[Passage]:
    """Reads {"doc_id", "text", "title", "score"}, the last two optional, one per line or in one array.

    Further fields are ignored, with one warning in the log for the whole file.

    Args:
        path: a file, plain or gzip, or `rerank.readers.lines.STDIN`.

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


def _passage(candidate: object, place: str) -> Passage:
    match candidate:
        case Passage():
            return candidate
        case str():
            return _from_mapping({"doc_id": place, "text": candidate})
        case (doc_id, text):
            return _from_mapping({"doc_id": doc_id, "text": text})
        case Mapping():
            if unread := candidate.keys() - set(FIELDS):
                _warn_once(listed(sorted(map(str, unread))))
            has_id = any(name in candidate for name in _ID_FIELDS)
            return _from_mapping(candidate if has_id else {"doc_id": place, **candidate})
    raise BadRow(f"is {reprlib.repr(candidate)}, but a candidate is {CANDIDATE_FORMS}")


@lru_cache(maxsize=100)
def _warn_once(fields: str) -> None:
    log.warning("candidates: fields that are not read: %s", fields)


def _from_mapping(row: Mapping[str, object]) -> Passage:
    doc_id, text, title = passage_of_row(row, _ID_FIELDS)
    return Passage(doc_id, text, score=optional_number_of(row, "score"), title=title.strip())
