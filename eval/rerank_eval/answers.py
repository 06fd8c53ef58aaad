"""What a system answered, query by query, in a file with which a killed run goes on."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rerank.errors import ConfigError
from rerank.types import ScoredDoc


@dataclass(frozen=True, slots=True)
class Reply:
    """A system's order of the candidates of one query, best first.

    Attributes:
        scores: strictly decreasing.
        positions: where each stood in the first stage's order, 0-based.
        execution: what ran, as the wire names it (rerank.proto, Execution); empty where nothing was served.
    """

    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]
    positions: tuple[int, ...]
    execution: Mapping[str, Any]

    @property
    def docs(self) -> list[ScoredDoc]:
        return [ScoredDoc(*row) for row in zip(self.doc_ids, self.scores, strict=True)]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply and its time at the caller. `ended_at` is in seconds of Unix time."""

    query_id: str
    wall_ms: float
    ended_at: float
    reply: Reply


class AnswerFile:
    """JSON lines: the settings, then an answer a line as they come. `answers` holds those that are there already.

    Args:
        path: the file; made when there is none.
        settings: all that decides the answers. JSON.

    Raises:
        ConfigError: the file holds answers that were given under other settings, or cannot be used.
    """

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._settings: dict[str, object] = json.loads(json.dumps(settings))
        self.answers: dict[str, Answer] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = _complete_rows(path)
            if rows:
                self._take(rows)
            else:
                path.write_text(self._header(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}; choose another --out") from error

    def add(self, answer: Answer) -> None:
        """Appends one answer, from any thread; from here on it survives the process."""
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            self.answers[answer.query_id] = answer
            file.write(_line(answer))

    def finish(self, query_ids: Iterable[str]) -> None:
        """Rewrites the file in the order of the queries, so that a resumed run leaves what an undisturbed one does."""
        self.answers = {query_id: self.answers[query_id] for query_id in query_ids}
        temporary = self._path.with_name(f".{self._path.name}.writing")
        temporary.write_text(self._header() + "".join(map(_line, self.answers.values())), encoding="utf-8")
        os.replace(temporary, self._path)

    def _header(self) -> str:
        return json.dumps({"settings": self._settings}, ensure_ascii=False) + "\n"

    def _take(self, rows: list[Any]) -> None:
        try:
            found, answers = rows[0]["settings"], [_answer(row) for row in rows[1:]]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self._path} is no file of answers ({error!r}); choose another --out") from error
        if differing := _differing(found, self._settings):
            raise ConfigError(
                f"{self._path} holds {len(answers)} answers under other settings ({differing}); choose another --out, "
                "or remove that folder"
            )
        self.answers = {answer.query_id: answer for answer in answers}


def _complete_rows(path: Path) -> list[Any]:
    """The rows of the file, of which the end of a line that was cut off is removed first."""
    if not path.exists():
        return []
    text = path.read_bytes()
    if complete := text[: text.rfind(b"\n") + 1]:
        os.truncate(path, len(complete))
    try:
        return [json.loads(line) for line in complete.decode().split("\n") if line]
    except ValueError as error:
        raise ConfigError(f"{path} is no file of answers ({error}); choose another --out") from error


def _differing(found: Mapping[str, object], given: Mapping[str, object]) -> str:
    names = sorted(name for name in found.keys() | given.keys() if found.get(name) != given.get(name))
    return "; ".join(f"{name}: {found.get(name)} there, {given.get(name)} now" for name in names)


def _line(answer: Answer) -> str:
    return json.dumps(asdict(answer), ensure_ascii=False) + "\n"


def _answer(row: Any) -> Answer:
    reply = row["reply"]
    doc_ids, scores, positions = (tuple(reply[name]) for name in ("doc_ids", "scores", "positions"))
    return Answer(
        row["query_id"], row["wall_ms"], row["ended_at"], Reply(doc_ids, scores, positions, reply["execution"])
    )
