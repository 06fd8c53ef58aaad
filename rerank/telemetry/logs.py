"""Writes the log as text for people or as JSON for programs, without the texts of requests."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rerank.config import TelemetryConfig
from rerank.errors import MAX_QUOTED_CHARS, Unauthenticated
from rerank.service.call import CallRecord
from rerank.service.requests import RerankRequest
from rerank.types import Trace
from rerank.util.terminal import escape_control_chars

log = logging.getLogger(__name__)

#: The log with one line per call; its messages are CallRecords.
_calls_log = logging.getLogger("rerank.calls")
#: The most lines that wait to be written; further ones are dropped and counted.
_MAX_WAITING = 10_000
#: Seconds for which lines are collected, because waking the thread takes as long as writing some lines.
_GATHER_S = 0.05
#: The most lines of one write.
_AT_ONCE = 1000
#: The most seconds that the end of the process waits for the last lines.
_FLUSH_S = 1.0
_STANDARD_ERROR = 2
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(config: TelemetryConfig) -> None:
    """Configures the root logger: to standard error, with the format and the level of the settings."""
    handler = LogWriter(_STANDARD_ERROR)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)


class LogWriter(logging.Handler):
    """Writes lines to a file on a separate thread, so that a pipe that nobody reads delays neither calls nor the exit.

    Args:
        file: the file descriptor.
    """

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file, self._lines, self._dropped = file, deque[str](), 0
        self._has_lines, self._is_writing = threading.Event(), False
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Passes a line to the thread, or drops it if too many wait."""
        if len(self._lines) >= _MAX_WAITING:
            self._dropped += 1
            return
        try:
            if self._dropped:
                message = f"{self._dropped} lines of the log were dropped, because earlier lines were not read in time"
                notice = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
                self._lines.append(self.format(notice))
                self._dropped = 0
            self._lines.append(self.format(record))
        except Exception:
            self.handleError(record)
        if not self._has_lines.is_set():
            self._has_lines.set()

    def flush(self) -> None:
        """Waits until the lines are written, at most a second. logging calls it at the end of the process, too."""
        end_s = time.monotonic() + _FLUSH_S
        while (self._lines or self._is_writing) and time.monotonic() < end_s:
            time.sleep(_GATHER_S / 10)

    def _write(self) -> None:
        while True:
            self._has_lines.wait()
            self._has_lines.clear()
            self._is_writing = True
            while self._lines:
                lines = list[str]()
                while self._lines and len(lines) < _AT_ONCE:
                    lines.append(self._lines.popleft())
                content = "\n".join([*lines, ""]).encode("utf-8", "backslashreplace")
                with suppress(OSError):  # a full disk, or a reader that has ended
                    while content:
                        content = content[os.write(self._file, content) :]
            self._is_writing = False
            time.sleep(_GATHER_S)


class RateLimitedLog:
    """Logs a frequent event at most once a second, with the number of events since the last line.

    Args:
        line: the text, with {} for the number, such as "HTTP port: {} connections were refused".
        level: level of the line.
    """

    def __init__(self, line: str, level: int = logging.WARNING) -> None:
        self._line, self._level = line, level
        self._number = 0
        self._next_s = 0.0

    def add(self, number: int, reason: str) -> None:
        """Counts events, and logs their number if the last line is older than a second.

        Args:
            number: number of events.
            reason: reason of the last event.
        """
        self._number += number
        now_s = time.monotonic()
        if now_s >= self._next_s:
            log.log(self._level, "%s; %s", self._line.format(self._number), reason)
            self._number, self._next_s = 0, now_s + 1


class CallLog:
    """Logs calls. Calls without a valid key, and calls cancelled before they were read, get one line a second together.

    Anyone may send thousands of them a second.
    """

    def __init__(self) -> None:
        self._refused = RateLimitedLog("{} calls had no valid key", logging.INFO)
        self._cancelled = RateLimitedLog("{} calls were cancelled before they were read", logging.INFO)

    def on_end(self, call: CallRecord) -> None:
        """Logs a call that has ended."""
        if isinstance(call.error, Unauthenticated):
            self._refused.add(1, f"the last of them by {call.peer}")
        elif call.is_cancelled and call.request is None:
            self._cancelled.add(1, f"the last of them by {call.peer}")
        else:
            _calls_log.info("%s", call)  # its text is made only if the level is logged


class TextFormatter(logging.Formatter):
    """A line per message. Control characters and line ends of callers are escaped, so that they cannot forge lines."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        return line if line.isprintable() else escape_control_chars(line).replace("\n", r"\n")

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return escape_control_chars(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """A JSON object per message: time (UTC), level, logger and message; and for a call its fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if call := _call(record):
            fields |= call_fields(call)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _printable(escape_control_chars(json.dumps(fields, ensure_ascii=False)))


def _printable(line: str) -> str:
    """Escapes invisible characters, such as zero-width and tag characters, and Unicode's line ends, as JSON does."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def call_fields(call: CallRecord) -> dict[str, Any]:
    """Fields of a call in the JSON log, without any text of the request."""
    fields: dict[str, Any] = {
        "request_id": call.request_id,
        "method": call.method,
        "status": call.status,
        "total_ms": round(call.seconds * 1000, 3),
    }
    if call.key:
        fields["key"] = call.key
    if call.model is not None:
        fields["model"] = call.model[:MAX_QUOTED_CHARS]
    if call.search is not None:
        fields |= {"candidates": call.search.hits, "first_stage_ms": call.search.first_stage_ms}
    elif isinstance(call.request, RerankRequest):
        fields["candidates"] = len(call.request.candidates)
    if call.ranking is not None:
        trace = call.ranking.trace
        fields |= costs(trace) | {"truncated": len(trace.truncated_doc_ids)}
    if call.error is not None:
        fields["error"] = type(call.error).__name__
    return fields


def costs(trace: Trace) -> dict[str, str | int | float]:
    """Model, strategy and cost of a ranking: fields of a call in the log, and attributes of its span."""
    return {
        "model": trace.model,
        "strategy": trace.strategy,
        "windows": len(trace.windows),
        "tokens": trace.tokens,
        "queue_ms": trace.queue_ms,
        "prepare_ms": trace.prepare_ms,
        "model_ms": trace.model_ms,
    }


def _call(record: logging.LogRecord) -> CallRecord | None:
    """The call that a log message is about; None for any other message."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    return arguments[0] if len(arguments) == 1 and isinstance(arguments[0], CallRecord) else None
