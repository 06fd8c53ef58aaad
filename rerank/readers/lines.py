"""Lines of a text file, plain or compressed with gzip, each parsed, with file and line in every error."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TypeVar, cast

from rerank.errors import CollectionError
from rerank.readers.rows import BadRow

T = TypeVar("T")

#: Stands for standard input.
STDIN = Path("-")

#: Far above any line of these formats, so that a file without line ends, such as a device, does not fill the memory.
_MAX_LINE_BYTES = 256 << 20
_GZIP = b"\x1f\x8b"


def parsed_lines(path: Path, parse: Callable[[str], T]) -> Iterator[tuple[int, T]]:
    """The 1-based number of each line that is not blank, and what `parse` makes of it.

    The text is UTF-8, with or without a byte order mark, and may be compressed with gzip, whatever the file's name is.
    Lines end with LF or CRLF only, because a JSON string may hold other line separators, such as U+2028.

    Args:
        path: a file, or `STDIN`.
        parse: called with each line, without its end; raises BadRow for one that it cannot read.

    Raises:
        CollectionError: the file cannot be read, or a line of it is not UTF-8, too long, or refused by `parse`; the
            message names file and line.
    """
    try:
        with _opened(path) as file:
            for number, line in enumerate(iter(partial(file.readline, _MAX_LINE_BYTES + 1), b""), start=1):
                try:
                    if text := _decoded(line, is_first=number == 1):
                        yield number, parse(text)
                except BadRow as error:
                    raise CollectionError(f"{path}:{number} {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise CollectionError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed if they begin as those of gzip do."""
    with nullcontext(cast(io.BufferedReader, sys.stdin.buffer)) if path == STDIN else path.open("rb") as file:
        is_gzip = file.peek(2).startswith(_GZIP)
        yield io.BufferedReader(gzip.GzipFile(fileobj=file)) if is_gzip else file


def _decoded(line: bytes, is_first: bool) -> str:
    """The text of a line without its end; empty if it is blank."""
    if len(line) > _MAX_LINE_BYTES:
        raise BadRow(f"is longer than {_MAX_LINE_BYTES >> 20} MiB; end each row with a line feed")
    try:
        text = line.decode("utf-8-sig" if is_first else "utf-8")
    except UnicodeDecodeError as error:
        raise BadRow(f"is not UTF-8 ({error.reason} at byte {error.start}); convert the file to UTF-8") from error
    return text.rstrip("\r\n") if text.strip() else ""
