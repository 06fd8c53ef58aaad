"""The JSON object of an HTTP request's body."""

from __future__ import annotations

import codecs
import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rerank.errors import InvalidRequest
from rerank.util.json_values import has_more_values
from rerank.util.validation import plain_words

_OBJECT = TypeAdapter(dict[str, Any])
#: A body may have this many values (texts, keys, numbers, lists, objects) for each candidate, and for the options.
_VALUES_PER_CANDIDATE, _VALUES_OF_OPTIONS = 32, 1000
UTF_8 = "utf-8"
#: In pydantic's errors about half of a surrogate pair: half of a character such as an emoji.
_HALF = ("surrogate", "hex escape")


def json_object(body: bytes | bytearray, max_candidates: int, charset: str = UTF_8) -> tuple[dict[str, Any], list[str]]:
    """The JSON object of a body, and warnings for the caller.

    Raises:
        InvalidRequest: the body is not a JSON object in this charset, or has many more values than `max_candidates`
            candidates need.
    """
    text = _in_utf_8(body, charset)
    limit = max_candidates * _VALUES_PER_CANDIDATE + _VALUES_OF_OPTIONS
    if len(text) > limit and has_more_values(text, limit):  # a value has at least a byte
        raise InvalidRequest(
            "body",
            f"it has more than {limit} values, which are allowed for {max_candidates} candidates, or too long numbers; "
            f"send at most {max_candidates} candidates, and only the fields of them that are needed",
            {"limit": str(limit)},
        )
    try:
        return _OBJECT.validate_json(text), []
    except ValidationError as error:
        problem = plain_words(error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"])
        if not text.strip():
            problem = "it is empty"
        if any(sign in problem for sign in _HALF) and (repaired := _without_halves(text)) is not None:
            return repaired, ["half of a surrogate pair, which is not a character, was read as U+FFFD"]
        try:
            text.decode(UTF_8)
        except UnicodeDecodeError as wrong:
            problem = f"byte {wrong.start} is 0x{text[wrong.start]:02x}, which is not UTF-8"
        raise InvalidRequest("body", f"{problem}; send a JSON object in UTF-8") from error


def _in_utf_8(body: bytes | bytearray, charset: str) -> bytes | bytearray:
    """The body in UTF-8, without a byte order mark. Raises: InvalidRequest if it is not in this charset."""
    if charset != UTF_8:
        try:
            body = body.decode(charset).removeprefix("\ufeff").encode(UTF_8)
        except UnicodeError as error:
            raise InvalidRequest("body", f"it is not in {charset}, which its content type names: {error}") from error
    return body[len(codecs.BOM_UTF8) :] if body.startswith(codecs.BOM_UTF8) else body


def _without_halves(text: bytes | bytearray) -> dict[str, Any] | None:
    """The JSON object with U+FFFD instead of each half of a surrogate pair; None if it has other faults, too."""
    try:
        whole = json.dumps(json.loads(text), ensure_ascii=False)
        return _OBJECT.validate_json(whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except (ValueError, RecursionError):
        return None
