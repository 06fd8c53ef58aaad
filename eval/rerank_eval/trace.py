"""Trace files: the response to every query of a run, in JSON lines, which a killed run resumes from."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rerank.errors import ConfigError
from rerank.types import ScoredDoc
from rerank.util.files import report_disk_errors
from rerank.util.json_files import differences
from rerank_eval.run_files import WAY_OUT, write_text


@dataclass(frozen=True, slots=True)
class RankedList:
    """A system's order of the candidates of one query, best first.

    Attributes:
        scores: strictly decreasing.
        positions: the position of each document in the first stage's order, 0-based.
        execution: the fields of the message Execution (rerank.proto) as JSON, and `score_kind`; empty for systems
            without a service.
    """

    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]
    positions: tuple[int, ...]
    execution: Mapping[str, Any]

    @property
    def docs(self) -> list[ScoredDoc]:
        return [ScoredDoc(*row) for row in zip(self.doc_ids, self.scores, strict=True)]

    @property
    def received(self) -> list[str]:
        """The doc_ids in the first stage's order."""
        return [doc_id for _, doc_id in sorted(zip(self.positions, self.doc_ids, strict=True))]


#: The ranking of a query without candidates: no system is asked about it.
NOTHING = RankedList((), (), (), {})


@dataclass(frozen=True, slots=True)
class Response:
    """The ranking of one query, with the latency that the caller saw. `ended_at` is Unix time in seconds."""

    query_id: str
    wall_ms: float
    ended_at: float
    reply: RankedList


_RESPONSE = TypeAdapter(Response)


class TraceFile:
    """A file of JSON lines: a header with the run's fingerprint, then one line per response.

    `responses`, by query_id, holds those that the file already contains.

    Args:
        path: the file; created if it does not exist.
        fingerprint: every setting that decides the responses; values that JSON can hold.

    Raises:
        ConfigError: the file holds responses of a run with another fingerprint, or cannot be read or written.
    """

    def __init__(self, path: Path, fingerprint: Mapping[str, object]) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._fingerprint: dict[str, object] = json.loads(json.dumps(fingerprint))
        self.responses: dict[str, Response] = {}
        with report_disk_errors(path, WAY_OUT):
            if rows := _complete_rows(path):
                self._resume(rows)
        if not rows:
            write_text(path, json.dumps({"settings": self._fingerprint}, ensure_ascii=False) + "\n")

    def add(self, response: Response) -> None:
        """Appends one response, from any thread; it survives the process from then on.

        Raises:
            ConfigError: the file cannot be written.
        """
        with self._lock, report_disk_errors(self._path, WAY_OUT):
            _append(self._path, json.dumps(asdict(response), ensure_ascii=False).encode() + b"\n")
            self.responses[response.query_id] = response

    def _resume(self, rows: list[Any]) -> None:
        try:
            stored, responses = rows[0]["settings"], [_RESPONSE.validate_python(row) for row in rows[1:]]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{self._path} is not a trace file ({error!r}); choose another --out") from error
        if changed := differences(stored, self._fingerprint):
            raise ConfigError(
                f"{self._path} holds {len(responses)} responses of a run with other settings ({changed}); choose "
                "another --out, or remove that folder"
            )
        self.responses = {response.query_id: response for response in responses}


def _append(path: Path, line: bytes) -> None:
    """Appends a line, or nothing: after a part of it, the next line would not be one. Raises: OSError."""
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(size)
            raise


def _complete_rows(path: Path) -> list[Any]:
    """The rows of the file. An incomplete end, which a kill or a power loss leaves, is removed from the file."""
    if not path.exists():
        return []
    text = path.read_bytes().partition(b"\0")[0]  # zeros fill a file that was longer than what was written
    if complete := text[: text.rfind(b"\n") + 1]:
        os.truncate(path, len(complete))
    try:
        return [json.loads(line) for line in complete.decode().split("\n") if line]
    except ValueError as error:
        raise ConfigError(f"{path} is not a trace file ({error}); choose another --out") from error
