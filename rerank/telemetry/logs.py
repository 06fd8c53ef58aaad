"""Writes the log as text for people or as JSON for programs, without the texts of requests."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from rerank.config import TelemetryConfig
from rerank.errors import MAX_QUOTED_CHARS
from rerank.service.call import CallRecord
from rerank.service.requests import RerankRequest
from rerank.types import Trace
from rerank.util.terminal import VisibleFormatter, visible

#: Name of the logger of calls.
CALLS = "rerank.calls"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(config: TelemetryConfig) -> None:
    """Makes the root logger write messages to standard error, in the form and from the level of the settings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)


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
