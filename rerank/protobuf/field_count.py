"""The number of fields of a serialized protobuf message, counted before the message is parsed.

Protobuf parses a whole message before anything can be counted: eight million empty candidates, which are 16 MB, take it
2.4 s and 740 MB, during which nothing else runs. The scanner here stops at a limit, and skips texts without a look at
them: it reads a thousand candidates with texts of 16,000 characters in about a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor

from rerank.config import Limits
from rerank.errors import InvalidRequest

#: Largest number of fields in a message for each candidate. A candidate is one field and has five; the others are for
#: later versions of the protocol.
FIELDS_PER_CANDIDATE = 8
#: Largest number of all other fields in a message.
_OTHER_FIELDS = 64
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
#: The largest wire type: 3 and 4 begin and end a group, whose fields count like any others.
_MAX_WIRE_TYPE = 5
#: Bytes that a varint has at most.
_MAX_VARINT = 10

#: Field number → the same for the message in that field, for the fields of a message type that hold messages.
_Nested: TypeAlias = Mapping[int, "_Nested"]


def check_field_count(message: bytes, kind: Descriptor, limits: Limits) -> None:
    """Refuses a serialized message of a type that has more fields than the largest allowed list of candidates needs.

    It comes before the message is parsed, which takes seconds for millions of fields. A list that is a little too long
    passes, and `rerank.service.requests` refuses it.

    Raises:
        InvalidRequest: names the number and the limit.
    """
    limit = FIELDS_PER_CANDIDATE * limits.max_candidates + _OTHER_FIELDS
    if count_fields(message, kind, limit) > limit:
        raise InvalidRequest(
            "request",
            f"the message and its candidates have more than {limit} fields; send each field once, and "
            f"at most {limits.max_candidates} candidates",
            {"limit": str(limit)},
        )


def count_fields(message: bytes, kind: Descriptor, limit: int) -> int:
    """Counts the fields of a serialized message and of the messages within it; stops at `limit` + 1.

    Counting ends where the message is damaged, which the parser reports.

    Args:
        message: the bytes; nothing is known of them.
        kind: the descriptor of the message type.
        limit: the largest number that matters. It bounds the time.
    """
    total, position = 0, 0
    # The end of each message that the position is in, and the messages in it.
    enclosing = [(len(message), _nested(kind))]
    try:
        while enclosing:
            end, nested = enclosing[-1]
            if position >= end:
                enclosing.pop()
                continue
            total += 1
            if total > limit:
                break
            tag, position = _varint(message, position)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == _LENGTH_DELIMITED:
                length, position = _varint(message, position)
                if length > end - position:
                    break
                if number in nested:
                    enclosing.append((position + length, nested[number]))
                else:
                    position += length
            elif wire_type == _VARINT:
                _, position = _varint(message, position)
            elif wire_type == _FIXED64:
                position += 8
            elif wire_type == _FIXED32:
                position += 4
            elif wire_type > _MAX_WIRE_TYPE:
                break
    except IndexError:  # the message ends within a field
        pass
    return total


@cache
def _nested(kind: Descriptor) -> _Nested:
    """Raises: RecursionError for a message type that contains itself; the protocol has none."""
    return {field.number: _nested(field.message_type) for field in kind.fields if field.message_type is not None}


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it. Raises: IndexError if there is none."""
    byte = message[position]
    if byte < 128:
        return byte, position + 1
    value = 0
    for shift in range(_MAX_VARINT):
        byte = message[position + shift]
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, position + shift + 1
    raise IndexError("a varint is longer than ten bytes")
