"""`rerank rank --batch`: the requests of a file, ranked into another file; after a kill it goes on where it ended."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import tee
from pathlib import Path
from typing import IO, Any, TypeAlias

from google.protobuf.json_format import MessageToDict

from rerank.client.error_details import ServiceError
from rerank.commands.console import PlainConsole
from rerank.commands.progress import show_progress
from rerank.errors import CollectionError, ConfigError, RerankError
from rerank.readers.requests import Request, request_rows
from rerank.types import CandidateSource
from rerank.util.files import check_file, report_disk_errors
from rerank.v1 import rerank_pb2 as pb

#: Answers the requests in their order: `RerankClient.rerank_many` with its options.
Answers: TypeAlias = Callable[
    [Iterator[tuple[str, Iterable[CandidateSource]]]], Iterable[pb.RerankResponse | ServiceError]
]
#: A row of the file, and the request in it.
_Row: TypeAlias = tuple[Mapping[str, Any], Request]


def rank_file(path: Path, out: Path, answers: Answers) -> int:
    """Ranks the requests of a file, in constant memory.

    Each line of `out` is the request with its candidates in their new order, their new scores as "score", and the
    execution. For a request that failed, it has the query and the "error". Lines that are there already are kept.

    Returns:
        The number of requests that failed.

    Raises:
        CollectionError: a line of the file is wrong, or it has none. Nothing was ranked then.
        ConfigError: `out` holds something else, is being written, or cannot be written.
        RerankError: see `RerankClient.rerank_many`. What is written then stays.
    """
    check_file(path)
    if not (total := sum(1 for _ in request_rows(path))):
        raise CollectionError(f"{path} has no requests; write one per line")
    stderr = PlainConsole(stderr=True)
    with _opened(out) as file, show_progress(stderr, "requests") as progress:
        rows = request_rows(path)
        done, failed = _finished(file, out, rows)
        progress.report("ranking", done, total)
        rows, asked = tee(rows)
        pairs = ((request.query.text, request.candidates) for _, request in asked)
        try:
            for (row, _), answer in zip(rows, answers(pairs), strict=True):
                file.write(json.dumps(_ranked(row, answer), ensure_ascii=False).encode(errors="backslashreplace"))
                file.write(b"\n")
                file.flush()
                done, failed = done + 1, failed + isinstance(answer, ServiceError)
                progress.report("ranking", done, total)
        except RerankError:
            stderr.print(f"{out} has {done:,} of {total:,} requests; the same command goes on with the others")
            raise
    return failed


@contextmanager
def _opened(out: Path) -> Iterator[IO[bytes]]:
    """The file, for reading and appending. Raises: ConfigError if it cannot be written, or another process does it."""
    with report_disk_errors(out, "choose another --out"), ExitStack() as stack:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context(out.open("a+b"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"{out} is being written by another process; wait for its end") from error
        yield file


def _finished(file: IO[bytes], out: Path, rows: Iterator[_Row]) -> tuple[int, int]:
    """Counts the answers in the file and those that are errors; takes their rows.

    A last line without an end is dropped: its process was killed while it wrote.

    Raises:
        ConfigError: a line is not the answer to the request of its place.
    """
    file.seek(0)
    end = done = failed = 0
    for line in file:
        if not line.endswith(b"\n"):
            file.truncate(end)
            break
        row, _ = next(rows, ({}, None))
        answer = _object(line)
        if "query" not in row or answer.get("query") != row["query"] or not {"execution", "error"} & answer.keys():
            raise ConfigError(
                f"{out}:{done + 1} is no answer to request {done + 1}; choose another --out, or remove it"
            )
        end, done, failed = end + len(line), done + 1, failed + ("error" in answer)
    return done, failed


def _object(line: bytes) -> Mapping[str, Any]:
    """The JSON object in a line; empty if it has none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _ranked(row: Mapping[str, Any], answer: pb.RerankResponse | ServiceError) -> dict[str, Any]:
    """The line of a request that was answered."""
    if isinstance(answer, ServiceError):
        return {"query": row["query"], "error": {"code": answer.code.name, "message": str(answer)}}
    ranked = [row["candidates"][result.original_position] | {"score": result.score} for result in answer.results]
    return {**row, "candidates": ranked, "execution": MessageToDict(answer.execution, preserving_proto_field_name=True)}
