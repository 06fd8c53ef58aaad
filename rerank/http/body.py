"""JSON bodies of requests: parsed only after the number of their values was bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rerank.errors import InvalidRequest

_OBJECT = TypeAdapter(dict[str, Any])
#: Values of a body (texts, keys, numbers, lists, objects) for each candidate, and for the options.
_VALUES_PER_CANDIDATE, _VALUES_OF_OPTIONS = 32, 1000
#: Bytes of a value outside of texts and without white space, on average: its digits, brackets, commas and colons.
_BYTES_PER_VALUE = 32
#: Bytes that are looked at at once; between two pieces, other threads run.
_PIECE = 256 * 1024


def json_object(body: bytes | bytearray, max_candidates: int) -> dict[str, Any]:
    """The JSON object of a body.

    The parser builds all values before anyone can look at their number, and meanwhile no other thread runs: 16 MB of
    brackets take 10 s and 1.4 GB. So they are counted in the bytes first, which takes 1 ms per MB.

    Raises:
        InvalidRequest: the body is no JSON object, or has many more values than `max_candidates` candidates need.
    """
    _check_number_of_values(body, max_candidates)
    try:
        return _OBJECT.validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        raise InvalidRequest("body", f"{problem}; send a JSON object in UTF-8") from error


def _check_number_of_values(body: bytes | bytearray, max_candidates: int) -> None:
    """Raises: InvalidRequest."""
    limit = max_candidates * _VALUES_PER_CANDIDATE + _VALUES_OF_OPTIONS
    quotes = values = size = 0
    for piece in _pieces(body):
        parts = piece.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[quotes % 2 :: 2]).translate(None, b" \t\r\n")
        quotes += len(parts) - 1
        values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        size += len(outside)
        if max(values, quotes // 2) > limit or size > limit * _BYTES_PER_VALUE:
            raise InvalidRequest(
                "body",
                f"it has more than {limit} values, which are allowed for {max_candidates} candidates, or too long "
                f"numbers; send at most {max_candidates} candidates, and only the fields of them that are needed",
                {"limit": str(limit)},
            )


def _pieces(body: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """The body in pieces that do not end between a backslash and the character that it escapes."""
    start = 0
    while start < len(body):
        piece = body[start : start + _PIECE]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        end = start + len(piece) + backslashes % 2
        yield body[start:end]
        start = end
