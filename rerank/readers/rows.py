"""Rows of data files: JSON objects with an id and texts, and errors that say what a row lacks and what it has."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from numbers import Integral, Real
from typing import Any

#: Number of fields of a row, and characters of a field's name, that an error shows.
_SHOWN_FIELDS, _SHOWN_CHARS = 8, 40


class BadRow(ValueError):
    """A row has another form than its format asks for. The message continues the place of the row: "has no text"."""


def json_object(line: str) -> Mapping[str, Any]:
    """The JSON object in a line. Raises: BadRow."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"is not JSON ({error}); write one object per line; found {reprlib.repr(line.strip())}") from error
    return as_object(row)


def as_object(value: object) -> Mapping[str, Any]:
    """The value, if it is a mapping. Raises: BadRow."""
    if not isinstance(value, Mapping):
        raise BadRow(f"is {reprlib.repr(value)}, which is not an object with named fields")
    return value


def object_of(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object in a field. Raises: BadRow when the row lacks it, or when it is none."""
    if name not in row:
        raise missing(name, row)
    with within(name):
        return as_object(row[name])


def list_of(row: Mapping[str, Any], name: str) -> Sequence[Any]:
    """The list in a field. Raises: BadRow when the row lacks it, or when it is none."""
    if name not in row:
        raise missing(name, row)
    if not isinstance(row[name], list | tuple):
        raise BadRow(f"has {reprlib.repr(row[name])} as {name}; give a list")
    return row[name]


@contextmanager
def within(part: str) -> Iterator[None]:
    """Names the part of a row, such as "candidates[3]", in a BadRow that the block raises."""
    try:
        yield
    except BadRow as error:
        raise BadRow(f"has a wrong {part}: it {error}") from error


def id_of(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """The id of a row, a string or an integer, in the field with one of these names.

    Raises:
        BadRow: none of the fields is there, two of them differ, or the id is of another type.
    """
    found = {name: _id(row[name], name) for name in names if name in row}
    if not found:
        raise missing(one_of(names), row)
    if len(set(found.values())) > 1:
        given = " and ".join(f"{name} {value!r}" for name, value in found.items())
        raise BadRow(f"has the different ids {given}; give one of them")
    return next(iter(found.values()))


def passage_of_row(row: Mapping[str, Any], id_names: Sequence[str]) -> tuple[str, str, str]:
    """Id, text and title of a row; the title is empty if it has none. Raises: BadRow."""
    return id_of(row, id_names), text_of(row, "text"), optional_text_of(row, "title")


def text_of(row: Mapping[str, Any], name: str) -> str:
    """The text in a field. Raises: BadRow when the row lacks it, or when it is not a text that UTF-8 can hold."""
    if name not in row:
        raise missing(name, row)
    return _text(row[name], name)


def optional_text_of(row: Mapping[str, Any], name: str) -> str:
    """The text in a field; empty if the field is missing or null. Raises: BadRow as `text_of` does."""
    return "" if row.get(name) is None else _text(row[name], name)


def optional_number_of(row: Mapping[str, Any], name: str) -> float | None:
    """The number in a field; None if the field is missing or null. Raises: BadRow when it is not a finite number."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadRow(f"has {reprlib.repr(value)} as {name}; give a number")
    return finite_number(value, name)


def finite_number(value: str | Real, name: str) -> float:
    """The number in a field or a column. Raises: BadRow when it is not a finite number."""
    try:
        if math.isfinite(number := float(value)):
            return number
    except (ValueError, OverflowError):  # the latter of an integer of more than 308 digits
        pass
    raise BadRow(f"has {reprlib.repr(value)} as {name}; give a finite number")


def missing(field: str, row: Mapping[str, Any]) -> BadRow:
    """The error that a row lacks a field; it lists the fields that the row has."""
    return BadRow(f"has no {field}; found {listed(row) or 'no field'}")


def listed(fields: Collection[str]) -> str:
    """The names of fields on one line; of many only the first ones."""
    names = ", ".join(_shown(name) for name in islice(fields, _SHOWN_FIELDS))
    return f"{names}, …" if len(fields) > _SHOWN_FIELDS else names


def one_of(names: Sequence[str]) -> str:
    """The names of one field: doc_id (or _id, docid)."""
    return f"{names[0]} (or {', '.join(names[1:])})" if len(names) > 1 else names[0]


def _shown(name: object) -> str:
    text = str(name)
    return text if text.isprintable() and len(text) <= _SHOWN_CHARS else reprlib.repr(text)


def _id(value: object, name: str) -> str:
    if isinstance(value, str):
        return _text(value, name)
    if not isinstance(value, bool) and isinstance(value, Integral):
        return str(value)
    raise BadRow(f"has {reprlib.repr(value)} as {name}; give a string or an integer")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise BadRow(f"has {reprlib.repr(value)} as {name}; give a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRow(f"has half of a surrogate pair in {name}, at character {error.start}: send text") from error
    return value
