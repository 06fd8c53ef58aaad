"""Runs systems on all queries of a dataset, with trace files from which a killed run resumes; writes result files."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from rich.console import Console

from rerank.commands.progress import show_progress
from rerank.engine.scores import strictly_decreasing
from rerank.errors import ConfigError, RerankError
from rerank.readers.qrels import to_column
from rerank.types import ScoredDoc
from rerank.util.files import atomic_file, report_disk_errors
from rerank.util.json_files import differences
from rerank_eval.datasets import Dataset
from rerank_eval.measures import MetricValues, Response, Run
from rerank_eval.systems import System

TRACE_FILE = "trace.jsonl"
#: Number of queries that are timed for the estimate of the time. The first query may load the model.
_TIMED = 2
#: A shorter estimate is not printed.
_SHORT_S = 60.0
#: What to do if results cannot be written.
_WAY_OUT = "free disk space and give the same command again, which goes on where it stopped, or choose another --out"
_RESPONSE = TypeAdapter(Response)


def run_systems(
    systems: Sequence[System], dataset: Dataset, out: Path, concurrency: int, console: Console, hint: str = ""
) -> dict[str, list[Response]]:
    """Runs all systems. The first queries of each system give an estimate of the time, and the other queries follow.

    Queries whose responses are in the trace files of a killed run are not run again.

    Args:
        concurrency: number of concurrent queries.
        hint: a way to save time, printed after the estimate.

    Returns:
        The responses by the name of the system, in the order of the queries.

    Raises:
        ConfigError: `out` holds responses of a run with other settings.
        RerankError: a service refused a query, which the message names; earlier responses are kept.
    """
    # All files are opened before the first query, so that a wrong --out is refused at once.
    runs = [_SystemRun(system, dataset, system_folder(system, systems, out), concurrency) for system in systems]
    for run in runs:
        if done := len(dataset.queries) - len(run.remaining):
            console.print(f"{run.name}: resumed with {done} of {len(dataset.queries)} queries done")
    remaining_s = {run.name: run.estimate_s() / concurrency for run in runs}
    if sum(remaining_s.values()) >= _SHORT_S:
        times = "; ".join(f"{name}, some {seconds / 60:.0f} minutes" for name, seconds in remaining_s.items())
        console.print(f"{len(dataset.queries)} queries on this machine: {times}{hint}", soft_wrap=True)
    for run in runs:
        with show_progress(console) as progress:
            for done in run.finish(concurrency):
                progress.report(f"{run.name}, queries", done, len(dataset.queries))
    return {run.name: [run.trace.responses[query_id] for query_id in dataset.queries] for run in runs}


def system_folder(system: System, systems: Sequence[System], out: Path) -> Path:
    """The folder of a system's results: `out` itself if there is only one system, else a folder inside it."""
    return out if len(systems) == 1 else out / system.name


class _SystemRun:
    """The run of one system on a dataset."""

    def __init__(self, system: System, dataset: Dataset, folder: Path, concurrency: int) -> None:
        self.name = system.name
        self._system, self._dataset = system, dataset
        fingerprint = {**system.fingerprint, **dataset.fingerprint, "load": concurrency}
        self.trace = TraceFile(folder / TRACE_FILE, fingerprint)

    @property
    def remaining(self) -> list[str]:
        """The ids of the queries without a response."""
        return [query_id for query_id in self._dataset.queries if query_id not in self.trace.responses]

    def estimate_s(self) -> float:
        """Runs the first queries, and estimates the seconds for the others, one after the other."""
        first, others = self.remaining[:_TIMED], self.remaining[_TIMED:]
        for query_id in first:
            self._run(query_id)
        return self.trace.responses[first[-1]].wall_ms / 1000 * len(others) if others else 0.0

    def finish(self, threads: int) -> Iterator[int]:
        """Runs the queries without a response. Yields the number of responses at the start and after each query."""
        done = len(self._dataset.queries) - len(self.remaining)
        yield done
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(self._run, query_id) for query_id in self.remaining]
            try:
                for future in as_completed(futures):
                    future.result()
                    done += 1
                    yield done
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _run(self, query_id: str) -> None:
        """Writes the response at once, so that the failure of another query does not lose it."""
        try:
            response = self._dataset.rank(self._system, query_id)
        except RerankError as error:
            error.args = (f"{self.name}, query {query_id!r}: {error}",)
            raise
        self.trace.add(response)


class TraceFile:
    """A file of JSON lines: a header with the run's fingerprint, then one line per response.

    Attributes:
        responses: query_id → response, with the responses of earlier runs.

    Args:
        path: the file; created if it does not exist.
        fingerprint: every setting that decides the responses, with values that JSON can hold.

    Raises:
        ConfigError: the file holds responses of a run with another fingerprint, or cannot be read or written.
    """

    def __init__(self, path: Path, fingerprint: Mapping[str, object]) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._fingerprint: dict[str, object] = json.loads(json.dumps(fingerprint))
        self.responses: dict[str, Response] = {}
        with report_disk_errors(path, _WAY_OUT):
            if rows := _complete_rows(path):
                self._resume(rows)
        if not rows:
            _write_text(path, json.dumps({"settings": self._fingerprint}, ensure_ascii=False) + "\n")

    def add(self, response: Response) -> None:
        """Appends a response, which a kill of the process cannot lose afterwards. Any thread may call it.

        Raises:
            ConfigError: the file cannot be written.
        """
        with self._lock, report_disk_errors(self._path, _WAY_OUT):
            _append(self._path, json.dumps(asdict(response), ensure_ascii=False).encode() + b"\n")
            self.responses[response.query_id] = response

    def _resume(self, rows: list[Any]) -> None:
        try:
            stored, responses = rows[0]["settings"], [_RESPONSE.validate_python(row) for row in rows[1:]]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{self._path} is not a trace file; choose another --out") from error
        if changed := differences(stored, self._fingerprint):
            raise ConfigError(
                f"{self._path} holds {len(responses)} responses of a run with other settings ({changed}); choose "
                "another --out, or remove that folder"
            )
        self.responses = {response.query_id: response for response in responses}


def _append(path: Path, line: bytes) -> None:
    """Appends a line as a whole or not at all, because the next line would follow a part of it. Raises: OSError."""
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
    text = path.read_bytes().partition(b"\0")[0]  # after a power loss, a file may end with zeros
    if complete := text[: text.rfind(b"\n") + 1]:
        os.truncate(path, len(complete))
    try:
        return [json.loads(line) for line in complete.decode().split("\n") if line]
    except ValueError as error:
        raise ConfigError(f"{path} is not a trace file; choose another --out") from error


def write_run(
    out: Path, run: Run, metrics: MetricValues, settings: Mapping[str, object], notes: Sequence[str] = ()
) -> None:
    """Writes run.trec and measures.json into the folder `out`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    measures = {
        "settings": dict(settings),
        "mean": metrics.mean,
        "per_query": metrics.per_query,
        "notes": [*notes, *_notes_on_ids(run)],
    }
    write_result(out / "run.trec", trec_run(run, tag="rerank"))
    write_result(out / "measures.json", json.dumps(measures, indent=2, default=str) + "\n")


def trec_run(run: Run, tag: str) -> str:
    """A run in TREC form: lines of query_id, Q0, doc_id, rank, score, tag.

    The written scores decrease strictly in float32, which trec_eval uses; with equal scores the order would be lost.
    White space in an id, which would separate columns, is percent-encoded: "my file.pdf" becomes my%20file.pdf.
    """
    return "".join(
        f"{to_column(query_id)} Q0 {to_column(doc.doc_id)} {rank} {score} {tag}\n"
        for query_id, docs in run.items()
        for rank, (doc, score) in enumerate(zip(docs, _written_scores(docs), strict=True), start=1)
    )


def _notes_on_ids(run: Run) -> list[str]:
    """A note if ids have white space, which names the first such id."""
    ids = (name for query_id, docs in run.items() for name in (query_id, *(doc.doc_id for doc in docs)))
    changed = next((name for name in ids if to_column(name) != name), None)
    if changed is None:
        return []
    return [f"white space in ids is percent-encoded in run.trec, whose columns it separates: {to_column(changed)}"]


def _written_scores(docs: Sequence[ScoredDoc]) -> list[str]:
    """The scores, which decrease strictly in float32 as well; ranks replace scores that float32 cannot represent."""
    with np.errstate(over="ignore"):
        scores = strictly_decreasing([doc.score for doc in docs])
        if not np.isfinite(np.array(scores, dtype=np.float32)).all():
            return [repr(float(len(docs) - rank)) for rank in range(len(docs))]
    return [repr(score) for score in scores]


def write_result(path: Path, text: str) -> Path | None:
    """Writes a file of results. An existing file with other content is renamed: report.md becomes report-1.md.

    Returns:
        The new path of the existing file; None if there was none, or its content is the same.

    Raises:
        ConfigError: the file cannot be written.
    """
    former = None
    with report_disk_errors(path, _WAY_OUT):
        if path.is_file() and path.read_bytes() != text.encode():
            names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
            former = next(name for name in names if not name.exists())
            path.rename(former)
    _write_text(path, text)
    return former


def _write_text(path: Path, text: str) -> None:
    """Replaces a file atomically and creates its folder. Raises: ConfigError when it cannot be written."""
    with report_disk_errors(path, _WAY_OUT):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
