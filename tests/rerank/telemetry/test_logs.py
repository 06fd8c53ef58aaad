"""The form of the log: text and JSON, with the fields of calls, and with texts only if asked for."""

import json
import logging
import os
import threading
import time
from typing import Any

import pytest

from rerank.config import TelemetryConfig
from rerank.errors import Overloaded
from rerank.service.call import CallRecord
from rerank.service.requests import RerankRequest
from rerank.telemetry.logs import JsonFormatter, LogWriter, RateLimitedLog, TextFormatter, set_up_logging
from rerank.types import Passage, Query, Ranking, RankOptions, ScoreKind, WindowTrace
from rerank.util.terminal import escape_control_chars
from tests.serving import wait_for
from tests.traces import trace_of

REQUEST = RerankRequest(Query("secret query"), [Passage("d", "secret\npassage")], RankOptions("m"))
TRACE = trace_of(strategy="sliding(20/10)", windows=(WindowTrace((0,), (0,), 9),), queue_ms=1, prepare_ms=2, model_ms=3)
RANKING = Ranking((), ScoreKind.RANK, TRACE)


def call(**fields: Any) -> CallRecord:
    default = {"method": "Rerank", "seconds": 0.0125, "peer": "ipv4:127.0.0.1:40000", "request_id": "r-1"}
    return CallRecord(**default | {"request": REQUEST, "result": RANKING} | fields)


def record(message: str, *arguments: object, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("rerank.calls", logging.INFO, __file__, 1, message, arguments, exc_info)


def test_answered_call_is_a_json_object_of_its_fields():
    line = JsonFormatter().format(record("%s", call()))
    fields = json.loads(line)
    assert fields.pop("time").endswith("+00:00")
    of_call = {"request_id": "r-1", "method": "Rerank", "status": "OK", "total_ms": 12.5, "model": "m", "candidates": 1}
    of_work = {"strategy": "sliding(20/10)", "windows": 1, "tokens": 9, "queue_ms": 1, "prepare_ms": 2, "model_ms": 3}
    message = "Rerank OK 12 ms id=r-1 model=m candidates=1 windows=1"
    of_record = {"level": "INFO", "logger": "rerank.calls", "message": message}
    assert fields == of_record | of_call | of_work | {"truncated": 0}
    assert "\n" not in line


def test_refused_call_names_its_error_and_one_without_a_message_has_no_fields_of_it():
    refused = call(result=None, error=Overloaded("full", 1.0))
    fields = json.loads(JsonFormatter().format(record("%s", refused)))
    assert (fields["status"], fields["error"], fields["model"]) == ("RESOURCE_EXHAUSTED", "Overloaded", "m")
    fields = json.loads(JsonFormatter().format(record("%s", call(request=None, result=None, is_cancelled=True))))
    assert {"model", "candidates"}.isdisjoint(fields)


@pytest.mark.parametrize("formatter", [JsonFormatter, TextFormatter])
def test_texts_are_never_logged(formatter):
    assert "secret" not in formatter().format(record("%s", call()))


@pytest.mark.parametrize(
    ("settings", "logged"),
    [({}, "call warning"), ({"log_level": "warning"}, "warning"), ({"log_level": "debug"}, "call warning debug")],
)
def test_level_and_lines_of_calls_are_settings(settings, logged, capfd):
    set_up_logging(TelemetryConfig(log_format="json", **settings))
    logging.getLogger("rerank.calls").info("call")
    logging.getLogger("rerank.x").warning("warning")
    logging.getLogger("rerank.x").debug("debug")
    logging.getLogger().handlers[0].flush()
    assert [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()] == logged.split()


@pytest.mark.parametrize("formatter", [JsonFormatter, TextFormatter])
def test_message_steers_no_terminal_and_stays_on_its_line(formatter):
    obeyed = ["\n", *(char for char in map(chr, range(0x110000)) if escape_control_chars(char) != char)]
    assert {"\x1b", "\x9b"} < set(obeyed)
    text = " ".join(obeyed)  # apart, since halves of a pair side by side are read as the whole
    line = formatter().format(record(text))
    assert not set(obeyed) & set(line)
    if formatter is JsonFormatter:
        assert json.loads(line)["message"] == text


def test_pipe_that_nobody_reads_holds_nobody_up_and_what_is_dropped_is_counted():
    read, write = os.pipe()
    writer = LogWriter(write)
    for _ in range(20_000):
        writer.emit(record("x" * 100))
    start_s = time.monotonic()
    writer.flush()
    assert time.monotonic() - start_s < 10
    reading = threading.Thread(target=lambda: lines.extend(os.fdopen(read)))
    lines = list[str]()
    reading.start()
    wait_for(lambda: writer.flush() or len(lines) >= 10_000)
    writer.emit(record("the last line"))
    writer.flush()
    os.close(write)
    reading.join()
    notices = [line for line in lines if "dropped" in line]  # more than one if the pipe took a line in between
    assert notices
    assert "the last line" in lines[-1]
    assert sum(int(notice.split()[0]) for notice in notices) + len(lines) - len(notices) - 1 == 20_000


def test_what_happens_often_is_logged_once_a_second_with_its_number(caplog):
    refusals = RateLimitedLog("HTTP port: {} connections were refused or ended")
    for _ in range(10_000):
        refusals.add(1, "the port is full")
    assert 1 <= len(caplog.records) < 5
    assert caplog.records[0].getMessage() == "HTTP port: 1 connections were refused or ended; the port is full"


def test_json_log_shows_what_nobody_sees():
    text = "a\u2028b\u200bc\U000e0041d\x7fé"
    line = JsonFormatter().format(logging.LogRecord("rerank", logging.INFO, "", 0, text, None, None))
    assert line.isprintable()
    assert "é" in line
    assert json.loads(line)["message"] == text
