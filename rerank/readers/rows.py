"""Rows of data files, plain or compressed with gzip: lines, or the objects of one JSON array, and their fields.

Every error names file and line, says what a row lacks, and what it has.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import reprlib
import sys
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, cast

from rerank.errors import CollectionError
from rerank.util.files import LFS_POINTER_BYTES, LFS_WAY_OUT, denied, is_lfs_pointer

T = TypeVar("T")

#: The path that means standard input.
STDIN = Path("-")

#: The longest line, far above any line of these formats: a file without line ends, such as a device, would fill memory.
_MAX_LINE_BYTES = 256 << 20
#: The most consecutive blank lines, which take some .5 s to read. Those of a damaged file may take minutes.
_MAX_BLANK_LINES = 1_000_000
#: The largest JSON array, which is read into memory as a whole.
_MAX_ARRAY_BYTES = 2 << 30
_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[ \t\r\n]*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Names of the field with the id of a passage, the preferred one first.
DOC_ID_FIELDS = ("doc_id", "_id", "docid", "id")
#: Names of the field with the text of a passage, the preferred one first; RankLLM's indexes have these names.
TEXT_FIELDS = ("text", "segment", "contents", "content", "body", "passage")
#: The most fields of a row that an error shows.
_SHOWN_FIELDS = 8
#: The most characters of a field's name that an error shows.
_SHOWN_CHARS = 40


class BadRow(ValueError):
    """A row does not have the expected format. Its message, such as "has no text", is put after file and line."""


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


def parsed_lines(path: Path, parse: Callable[[str], T]) -> Iterator[tuple[int, T]]:
    """Pairs of the 1-based number of each line that is not blank, and the result of `parse`.

    The text is UTF-8, with or without a byte order mark, and may be compressed with gzip, whatever the file's name is.
    Lines end with LF or CRLF only, because a JSON string may hold other line separators, such as U+2028.

    Args:
        path: a file, or `STDIN`.
        parse: called with each line, without its end; raises BadRow for a line that it cannot read.

    Raises:
        CollectionError: the file cannot be read, has too many blank lines, or a line is too long, not UTF-8, or refused
            by `parse`; the message names file and line.
    """
    with _opened(path) as file:
        yield from _parsed_lines(file, path, parse)


def json_rows(
    path: Path, parse: Callable[[Mapping[str, Any]], T], parse_line: Callable[[str], Mapping[str, Any]] = json_object
) -> Iterator[tuple[int, T]]:
    """Pairs of the 1-based line where each JSON object begins, and the result of `parse`.

    The file holds one object per line, or one array of objects, indented or not. For the rest, and for errors, see
    `parsed_lines`.

    Args:
        parse_line: line → the object in it, for a file that is not an array.
    """
    with _opened(path) as file:
        if _is_array(file):
            yield from _array_rows(file, path, parse)
        else:
            yield from _parsed_lines(file, path, lambda line: parse(parse_line(line)))


def distinct(
    path: Path, rows: Iterable[tuple[int, T]], key: Callable[[T], Hashable], name: str, may_repeat: bool = False
) -> Iterator[T]:
    """The rows of a file, which must have different keys.

    Args:
        rows: pairs of line number and row.
        name: what the key is, for the error.
        may_repeat: leave out a row that is equal to an earlier one, instead of refusing it.

    Raises:
        CollectionError: two rows have the same key; the message names both lines.
    """
    seen: dict[Hashable, tuple[int, T]] = {}
    for number, row in rows:
        first, known = seen.setdefault(key(row), (number, row))
        if first == number:
            yield row
        elif not may_repeat or row != known:
            found = key(row)
            shown = " ".join(map(repr, found)) if isinstance(found, tuple) else repr(found)
            differs = ", with another value" if may_repeat else ""
            raise CollectionError(f"{path}:{number} has the {name} {shown} of line {first}{differs}; give it once")


def _is_array(file: io.BufferedReader) -> bool:
    return file.peek(1).removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"[")


def _parsed_lines(file: io.BufferedReader, path: Path, parse: Callable[[str], T]) -> Iterator[tuple[int, T]]:
    last = 0  # the last line that is not blank
    for number, line in enumerate(iter(partial(file.readline, _MAX_LINE_BYTES + 1), b""), start=1):
        with _located(path, number):
            if not (text := _decoded(line, is_first=number == 1)):
                if number - last > _MAX_BLANK_LINES:
                    raise BadRow(f"is blank like the {_MAX_BLANK_LINES:,} lines before it; leave blank lines out")
                continue
            row = parse(text)
        last = number
        yield number, row


def _array_rows(
    file: io.BufferedReader, path: Path, parse: Callable[[Mapping[str, Any]], T]
) -> Iterator[tuple[int, T]]:
    content = file.read(_MAX_ARRAY_BYTES + 1)
    if len(content) > _MAX_ARRAY_BYTES:
        limit = f"{_MAX_ARRAY_BYTES >> 30} GiB"
        raise CollectionError(f"{path} is a JSON array of more than {limit}; write one object per line")
    with _located(path, 1):
        text = _utf8(content, is_first=True)
    for line, value in _array_values(text, path):
        with _located(path, line):
            row = parse(as_object(value))
        yield line, row


def _array_values(text: str, path: Path) -> Iterator[tuple[int, object]]:
    """The values of a JSON array, one after the other, each with the line where it begins."""
    decoder, line, counted = json.JSONDecoder(), 1, 0
    at, is_first = _after_space(text, text.index("[") + 1), True
    while not text.startswith("]", at):
        line, counted = line + text.count("\n", counted, at), at
        if not is_first and not text.startswith(",", at):
            raise CollectionError(f"{path}:{line} is not JSON: the array goes on without a comma, or has no end")
        start = at if is_first else _after_space(text, at + 1)
        line, counted = line + text.count("\n", counted, start), start
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise CollectionError(f"{path}:{line} is not JSON ({error}) in an array") from error
        yield line, value
        at, is_first = _after_space(text, end), False
    if text[at + 1 :].strip():
        raise CollectionError(f"{path} goes on after its JSON array; write one array, or one object per line")


def _after_space(text: str, at: int) -> int:
    """The first position from `at` on that is not white space."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


@contextmanager
def _located(path: Path, line: int) -> Iterator[None]:
    """Names file and line in a BadRow that the block raises."""
    try:
        yield
    except BadRow as error:
        raise CollectionError(f"{path}:{line} {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file, decompressed if they are gzip's.

    Raises:
        CollectionError: the file cannot be read.
    """
    try:
        with nullcontext(cast(io.BufferedReader, sys.stdin.buffer)) if path == STDIN else path.open("rb") as file:
            is_gzip = (start := file.peek(LFS_POINTER_BYTES)).startswith(_GZIP)
            if is_lfs_pointer(start):
                raise CollectionError(f"{path} {LFS_WAY_OUT}")
            yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if is_gzip else file
    except (OSError, EOFError, zlib.error) as error:
        problem = denied(path) if isinstance(error, PermissionError) else ""
        problem = problem or f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise CollectionError(problem) from error


def _decoded(line: bytes, is_first: bool) -> str:
    """The text of a line without its end; empty if it is blank."""
    if len(line) > _MAX_LINE_BYTES:
        raise BadRow(f"is longer than {_MAX_LINE_BYTES >> 20} MiB; end each row with a line feed")
    text = _utf8(line, is_first)
    return text.rstrip("\r\n") if text.strip() else ""


def _utf8(content: bytes, is_first: bool) -> str:
    try:
        return content.decode("utf-8-sig" if is_first else "utf-8")
    except UnicodeDecodeError as error:
        raise BadRow(f"is not UTF-8 ({error.reason} at byte {error.start}); convert the file to UTF-8") from error


# --- fields of a row


def object_of(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object in a field. Raises: BadRow if the row lacks the field, or its value is not an object."""
    if name not in row:
        raise missing(name, row)
    with within(name):
        return as_object(row[name])


def list_of(row: Mapping[str, Any], name: str) -> Sequence[Any]:
    """The list in a field. Raises: BadRow if the row lacks the field, or its value is not a list."""
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
        BadRow: the row has none of the fields, two of them differ, or the id has another type.
    """
    found = {name: id_value(row[name], name) for name in names if name in row}
    if not found:
        raise missing(one_of(names), row)
    if len(set(found.values())) > 1:
        given = " and ".join(f"{name} {value!r}" for name, value in found.items())
        raise BadRow(f"has the different ids {given}; give one of them")
    return next(iter(found.values()))


def passage_of_row(row: Mapping[str, Any], id_names: Sequence[str]) -> tuple[str, str, str]:
    """Id, text and title of a row; the title is empty if it has none. Raises: BadRow."""
    return id_of(row, id_names), text_of(row, text_field_of(row)), optional_text_of(row, "title")


def text_field_of(row: Mapping[str, Any]) -> str:
    """The first of `TEXT_FIELDS` that a row has. Raises: BadRow if it has none."""
    for name in TEXT_FIELDS:
        if name in row:
            return name
    raise missing(one_of(TEXT_FIELDS), row)


def text_of(row: Mapping[str, Any], name: str) -> str:
    """The text in a field. Raises: BadRow if the row lacks the field, or its value is not a text in valid Unicode."""
    if name not in row:
        raise missing(name, row)
    return text_value(row[name], name)


def optional_text_of(row: Mapping[str, Any], name: str) -> str:
    """The text in a field; empty if the field is missing or null. Raises: BadRow as `text_of` does."""
    return "" if row.get(name) is None else text_value(row[name], name)


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
    except (ValueError, OverflowError):  # OverflowError: an integer of more than 308 digits
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


def id_value(value: object, name: str) -> str:
    """An id of the field `name`, a string or an integer, as text. Raises: BadRow if it is something else."""
    if isinstance(value, str):
        return text_value(value, name)
    if not isinstance(value, bool) and isinstance(value, Integral):
        return str(value)
    raise BadRow(f"has {reprlib.repr(value)} as {name}; give a string or an integer")


def text_value(value: object, name: str) -> str:
    """The text in the field `name`. Raises: BadRow if the value is no text, or UTF-8 cannot hold the text."""
    if not isinstance(value, str):
        raise BadRow(f"has {reprlib.repr(value)} as {name}; give a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRow(f"has half of a surrogate pair in {name}, at character {error.start}: send text") from error
    return value
