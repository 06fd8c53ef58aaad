"""Runs of all systems on all queries, with trace files that a killed run resumes from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from rerank.commands.progress import show_progress
from rerank.errors import RerankError
from rerank_eval.trace import RankedList, Response, TraceFile

TRACE_FILE = "trace.jsonl"
#: Queries to estimate the time of the others from: the first one may load the model.
_TIMED = 2
#: A shorter run is not announced.
_SHORT_S = 60.0

#: Responses by variant, in the order of the queries.
Responses: TypeAlias = dict[str, list[Response]]


@dataclass(frozen=True, slots=True)
class Variant:
    """A system with one order of its candidates, or one kind of search: one row of the report.

    Attributes:
        fingerprint: every setting that decides the responses; a resumed run must have the same.
        rank: query_id → ranking; called from several threads.
    """

    name: str
    fingerprint: Mapping[str, object]
    rank: Callable[[str], RankedList]


def variant_folder(name: str, variants: int, out: Path) -> Path:
    """The folder of a variant's results: `out` itself if there is only one variant, else a folder inside it."""
    return out if variants == 1 else out / name


def run_variants(
    variants: Sequence[Variant], query_ids: Sequence[str], out: Path, concurrency: int, console: Console, hint: str = ""
) -> Responses:
    """Runs all variants: the first queries of each, which give an estimate for all, and then the others.

    Queries whose responses are in the trace files of a killed run are not run again.

    Args:
        concurrency: number of concurrent queries.
        hint: a way to less time, which follows the estimate.

    Raises:
        ConfigError: `out` holds responses of a run with other settings.
        RerankError: a service refused a query, which the message names; earlier responses are kept.
    """
    # All files are opened before the first query, so that a wrong --out is refused at once.
    files = [_trace_file(variant, len(variants), out, concurrency) for variant in variants]
    for variant, file in zip(variants, files, strict=True):
        if done := len(file.responses.keys() & set(query_ids)):
            console.print(f"{variant.name}: resumed with {done} of {len(query_ids)} queries done")
    remaining_s = {
        variant.name: _remaining_s(variant, query_ids, file) / concurrency
        for variant, file in zip(variants, files, strict=True)
    }
    if sum(remaining_s.values()) >= _SHORT_S:
        times = "; ".join(f"{name}, some {seconds / 60:.0f} minutes" for name, seconds in remaining_s.items())
        console.print(f"{len(query_ids)} queries on this machine: {times}{hint}", soft_wrap=True)
    for variant, file in zip(variants, files, strict=True):
        with show_progress(console) as progress:
            for number in _run_concurrently(variant, query_ids, file, concurrency):
                progress.report(f"{variant.name}, queries", number, len(query_ids))
    return {
        variant.name: [file.responses[query_id] for query_id in query_ids]
        for variant, file in zip(variants, files, strict=True)
    }


def _trace_file(variant: Variant, variants: int, out: Path, concurrency: int) -> TraceFile:
    return TraceFile(
        variant_folder(variant.name, variants, out) / TRACE_FILE, {**variant.fingerprint, "load": concurrency}
    )


def _remaining_s(variant: Variant, query_ids: Sequence[str], file: TraceFile) -> float:
    """Runs the first queries, and estimates the seconds for the others, one after the other."""
    remaining = [query_id for query_id in query_ids if query_id not in file.responses]
    for query_id in remaining[:_TIMED]:
        _run_query(variant, query_id, file)
    others = remaining[_TIMED:]
    return file.responses[remaining[_TIMED - 1]].wall_ms / 1000 * len(others) if others else 0.0


def _run_concurrently(variant: Variant, query_ids: Sequence[str], file: TraceFile, threads: int) -> Iterator[int]:
    """Runs the queries without a response. Yields the number of responses at the start and after each of them."""
    remaining = [query_id for query_id in query_ids if query_id not in file.responses]
    done = len(query_ids) - len(remaining)
    yield done
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(_run_query, variant, query_id, file) for query_id in remaining]
        try:
            for future in as_completed(futures):
                future.result()
                done += 1
                yield done
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_query(variant: Variant, query_id: str, file: TraceFile) -> None:
    """Writes the response at once, so that the failure of another query does not lose it."""
    start = time.perf_counter()
    try:
        ranking = variant.rank(query_id)
    except RerankError as error:
        error.args = (f"{variant.name}, query {query_id!r}: {error}",)
        raise
    file.add(Response(query_id, (time.perf_counter() - start) * 1000, time.time(), ranking))
