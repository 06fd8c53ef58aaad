"""JSON bodies of requests, which are parsed only after their values were counted."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from rerank.errors import InvalidRequest
from rerank.util.json_values import has_more_values

_OBJECT = TypeAdapter(dict[str, Any])
#: A body may have this many values (texts, keys, numbers, lists, objects) for each candidate, and for the options.
_VALUES_PER_CANDIDATE, _VALUES_OF_OPTIONS = 32, 1000


def json_object(body: bytes | bytearray, max_candidates: int) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        InvalidRequest: the body is no JSON object, or has many more values than `max_candidates` candidates need.
    """
    check_number_of_values(body, max_candidates)
    try:
        return _OBJECT.validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        raise InvalidRequest("body", f"{problem}; send a JSON object in UTF-8") from error


def check_number_of_values(body: bytes | bytearray, max_candidates: int) -> None:
    """Raises: InvalidRequest if a body has many more values than `max_candidates` candidates need."""
    limit = max_candidates * _VALUES_PER_CANDIDATE + _VALUES_OF_OPTIONS
    if has_more_values(body, limit):
        raise InvalidRequest(
            "body",
            f"it has more than {limit} values, which are allowed for {max_candidates} candidates, or too long numbers; "
            f"send at most {max_candidates} candidates, and only the fields of them that are needed",
            {"limit": str(limit)},
        )
