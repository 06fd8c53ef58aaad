"""`rerank rank --batch`: ranks the requests of a file into another file, and resumes after a kill."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from google.protobuf.json_format import MessageToDict

from rerank.client.error_details import ServiceError
from rerank.commands.display import warnings_of
from rerank.commands.progress import show_progress
from rerank.commands.run import PlainConsole
from rerank.errors import CollectionError, ConfigError, NotFound, RerankError, SelfTestFailed
from rerank.protobuf.fields import request_message
from rerank.readers.candidates import request_rows
from rerank.types import Passage
from rerank.util.files import atomic_file, check_file, check_plain_name, report_disk_errors, sync
from rerank.util.json_files import differences
from rerank.util.warning_counts import WarningCounts
from rerank.v1 import rerank_pb2 as pb

#: Answers the requests in their order: `RerankClient.rerank_many` with its options.
Answers: TypeAlias = Callable[[Iterator[tuple[str, Iterable[Passage]]]], Iterable[pb.RerankResponse | ServiceError]]


def ranking_settings(fields: Mapping[str, Any], models: Sequence[pb.Model]) -> dict[str, Any]:
    """The settings that decide the answers: fields of RerankRequest, and the name and revision of the model.

    Args:
        fields: fields of RerankRequest without the query and the candidates.
        models: the models of the service, the default model first.

    Raises:
        InvalidRequest: a field cannot have its value.
        NotFound: the service has no model of a name in the fields.
        SelfTestFailed: the service does not serve the model.
    """
    request = request_message(pb.RerankRequest, fields)
    names = {"": models[0]} | {model.name: model for model in models}
    for name in filter(None, (request.model, request.strategy.preranker)):
        if name not in names:
            raise NotFound(f"model {name!r} is not one of {', '.join(model.name for model in models)}")
    model = names[request.model]
    if model.problem:
        raise SelfTestFailed(f"the service does not serve {model.name}: {model.problem}")
    given = MessageToDict(request, preserving_proto_field_name=True)
    return given | {"model": model.name, "model_revision": model.model_revision}


class Counts(NamedTuple):
    """Numbers of requests.

    Attributes:
        total: all requests of the file.
        before: requests that an earlier run has ranked.
        failed: requests that failed in this run.
        warnings: the warnings of this run's replies, one line for each kind.
    """

    total: int
    before: int
    failed: int
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class RankedFile:
    """The file with the rankings of a file of requests.

    A line is a request with its candidates in their new order, their new scores as "score", the "execution" and the
    "settings". For a request that failed, it has the query, the "error" and the settings.

    Attributes:
        requests: the file of requests, in RankLLM's form.
        path: the file of rankings. It is written under another name, which ends in ".partial", and renamed at the end.
        settings: see `ranking_settings`.
    """

    requests: Path
    path: Path
    settings: Mapping[str, Any]

    def rank(self, answers: Answers) -> Counts:
        """Ranks the requests that have no ranking yet, in constant memory, and repeats failed ones.

        Raises:
            CollectionError: a line of the requests is wrong, or the file has none. Nothing was ranked then.
            ConfigError: `path` holds something else or rankings by other settings, another process writes it, or it
                cannot be written.
            RerankError: see `RerankClient.rerank_many`. The rankings so far are kept.
        """
        check_plain_name(self.path, "--out")
        check_file(self.requests)
        partial = self.path.with_name(f"{self.path.name}.partial")
        with report_disk_errors(self.path, "choose another --out"), _locked(partial) as file:
            is_ranked = self._is_ranked(file)
            self._merge_partial(file)
            failed, warnings = (0, []) if all(is_ranked) else self._write(file, is_ranked, answers)
            if all(is_ranked):
                partial.unlink()
            else:
                sync(partial)
                os.replace(partial, self.path)
        return Counts(len(is_ranked), sum(is_ranked), failed, warnings)

    def _is_ranked(self, partial: IO[bytes]) -> list[bool]:
        """For each request, whether it has a ranking already. Raises: CollectionError, ConfigError; see `rank`."""
        found = list[bool]()
        rows = (row for row, _ in request_rows(self.requests))
        with self._lines() as older_lines:
            for index, (row, newer, older) in enumerate(zip_longest(rows, _whole(partial), older_lines)):
                ranked = [self._is_ranking(index, row, line) for line in (newer, older) if line is not None]
                found.append(any(ranked))
        if not found:
            raise CollectionError(f"{self.requests} has no requests; write one per line")
        return found

    def _is_ranking(self, index: int, row: Mapping[str, Any] | None, line: bytes) -> bool:
        """True for a ranking, False for an error. Raises: ConfigError for anything else."""
        answer, way_out = _object(line), "choose another --out, or remove it"
        if row is None or answer.get("query") != row["query"] or not {"execution", "error"} & answer.keys():
            raise ConfigError(f"{self.path}:{index + 1} is not an answer to request {index + 1}; {way_out}")
        if changed := differences(answer["settings"], self.settings):
            raise ConfigError(f"{self.path}:{index + 1} was ranked with other settings ({changed}); {way_out}")
        return "execution" in answer

    def _merge_partial(self, partial: IO[bytes]) -> None:
        """Replaces the old output by the lines that a killed run left."""
        if partial.seek(0, os.SEEK_END):
            with atomic_file(self.path) as path, path.open("wb") as merged, self._lines() as older:
                for line in _whole(partial):
                    merged.write(line)
                    next(older, None)
                merged.writelines(older)
            partial.truncate(0)

    def _write(self, partial: IO[bytes], is_ranked: Sequence[bool], answers: Answers) -> tuple[int, list[str]]:
        """Writes the answers of an earlier run and the new answers, in the order of the requests.

        Returns the number of requests that failed, and the warnings of the replies to the others.
        """
        asked = (
            (request.query.text, request.candidates)
            for (_, request), has_ranking in zip(request_rows(self.requests), is_ranked, strict=True)
            if not has_ranking
        )
        results, failed, stderr = iter(answers(asked)), 0, PlainConsole(stderr=True)
        warnings, replies = WarningCounts(), 0
        with self._lines() as lines, show_progress(stderr, "requests") as progress:
            done, total = sum(is_ranked), len(is_ranked)
            progress.report("ranking", done, total)
            for (row, _), has_ranking, line in zip_longest(request_rows(self.requests), is_ranked, lines):
                if not has_ranking:
                    try:
                        answer = next(results)
                    except RerankError:
                        stderr.print(f"{done:,} of {total:,} requests are ranked; the same command ranks the others")
                        raise
                    line = self._line(row, answer)
                    done += 1
                    if isinstance(answer, ServiceError):
                        failed += 1
                    else:
                        replies += 1
                        warnings.add(str(row["query"].get("qid", done)), warnings_of(answer.execution))
                    progress.report("ranking", done, total)
                partial.write(line)
                partial.flush()
        return failed, warnings.lines(replies)

    def _line(self, row: Mapping[str, Any], answer: pb.RerankResponse | ServiceError) -> bytes:
        if isinstance(answer, ServiceError):
            outcome = {"query": row["query"], "error": {"code": answer.code.name, "message": str(answer)}}
        else:
            candidates = [
                row["candidates"][result.original_position] | {"score": result.score} for result in answer.results
            ]
            execution = MessageToDict(answer.execution, preserving_proto_field_name=True)
            outcome = {**row, "candidates": candidates, "execution": execution}
        text = json.dumps(outcome | {"settings": self.settings}, ensure_ascii=False)
        return text.encode(errors="backslashreplace") + b"\n"

    @contextmanager
    def _lines(self) -> Iterator[Iterator[bytes]]:
        """The lines of the file; none if there is no file."""
        if not self.path.exists():
            yield iter(())
            return
        with self.path.open("rb") as file:
            yield file


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The file, for reading and appending. Raises: ConfigError if another process writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"{path} is being written by another process; wait for its end") from error
        yield file


def _whole(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, without a last one that was written in part because its process was killed."""
    file.seek(0)
    return (line for line in file if line.endswith(b"\n"))


def _object(line: bytes) -> Mapping[str, Any]:
    """The JSON object in a line; empty if the line is not a JSON object whose "settings" are an object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("settings"), dict) else {}
