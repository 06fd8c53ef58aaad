"""Ends a command with one line if standard output cannot be written, as on a full disk."""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

from rerank.errors import RerankError


class OutputLost(RerankError):
    """Standard output cannot be written.

    Attributes:
        reader_has_gone: it is a pipe whose reader has ended, as `head` does when it has its lines.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}; send it elsewhere")
        self.reader_has_gone = error.errno == errno.EPIPE


class _StandardOutput(io.FileIO):
    """The file of standard output.

    The first write that fails raises OutputLost. Later ones are discarded, because Python writes the rest of its
    buffer once more when it ends, and would complain with a traceback.
    """

    _is_lost = False

    def write(self, content: Any, /) -> int:
        if self._is_lost:
            return memoryview(content).nbytes
        try:
            return super().write(content) or 0
        except OSError as error:
            self._is_lost = True
            raise OutputLost(error) from error


def guard_output() -> None:
    """Makes a failing write to standard output raise OutputLost, unless something has replaced it, as tests do."""
    stream = sys.__stdout__
    if stream is None or sys.stdout is not stream:
        return
    stream.flush()
    raw = _StandardOutput(stream.fileno(), "w", closefd=False)
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)
    sys.stdout = io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=is_unbuffered,
    )
