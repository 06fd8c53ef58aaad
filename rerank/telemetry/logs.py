"""Writes the log as text for people or as JSON for programs, without the texts of requests."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from queue import Full, Queue
from typing import Any

from rerank.config import TelemetryConfig
from rerank.errors import MAX_QUOTED_CHARS
from rerank.service.record import CallRecord
from rerank.service.requests import RerankRequest
from rerank.types import Trace
from rerank.util.terminal import VisibleFormatter, visible

log = logging.getLogger(__name__)

#: Name of the logger of calls.
CALLS = "rerank.calls"
#: Lines that wait until standard error takes them; further ones are dropped and counted.
_MAX_WAITING = 10_000
#: Seconds that the last lines have at the end of the process.
_FLUSH_S = 1.0
_STANDARD_ERROR = 2
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(config: TelemetryConfig) -> None:
    """Makes the root logger write messages to standard error, in the form and from the level of the settings."""
    handler = LogWriter(_STANDARD_ERROR)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)


class LogWriter(logging.Handler):
    """Writes lines to a file on a separate thread: a pipe that nobody reads keeps no call waiting, and no exit.

    Args:
        file: the descriptor.
    """

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file, self._lines, self._dropped = file, Queue[str](_MAX_WAITING), 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Passes a line to the thread, or drops it if too many wait."""
        try:
            if self._dropped:
                message = f"{self._dropped} lines of the log were dropped, because nobody read the lines before"
                notice = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
                self._lines.put_nowait(self.format(notice))
                self._dropped = 0
            self._lines.put_nowait(self.format(record))
        except Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Waits until the lines are written, but not long. Called at the end of the process, too."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, _FLUSH_S)

    def _write(self) -> None:
        while True:
            content = f"{self._lines.get()}\n".encode("utf-8", "backslashreplace")
            with suppress(OSError):  # a full disk, or a reader that has ended
                while content:
                    content = content[os.write(self._file, content) :]
            self._lines.task_done()


class CountedLog:
    """Logs what happens often, at most once a second, with the number of times.

    Args:
        line: with {} instead of the number, such as "HTTP port: {} connections were refused".
        level: of the line.
    """

    def __init__(self, line: str, level: int = logging.WARNING) -> None:
        self._line, self._level = line, level
        self._number = 0
        self._next_s = 0.0

    def add(self, number: int, reason: str) -> None:
        """Counts, and logs the number since the line before.

        Args:
            number: how often it has happened.
            reason: of the last time.
        """
        self._number += number
        now_s = time.monotonic()
        if now_s >= self._next_s:
            log.log(self._level, "%s; %s", self._line.format(self._number), reason)
            self._number, self._next_s = 0, now_s + 1


class TextFormatter(VisibleFormatter):
    """A line per message. What callers send cannot begin one that looks like another message."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return super().formatMessage(record).replace("\n", r"\n")


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
        return visible(json.dumps(fields, ensure_ascii=False))


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
