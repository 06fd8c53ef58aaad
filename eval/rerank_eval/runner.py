"""Runs of all systems on all queries, with trace files from which a killed run resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from rerank.commands.progress import show_progress
from rerank_eval.orders import ORIGINAL, Order
from rerank_eval.trace import RankedList, Response, TraceFile

TRACE_FILE = "trace.jsonl"

#: Responses by variant, in the order of the queries.
Responses: TypeAlias = dict[str, list[Response]]


@dataclass(frozen=True, slots=True)
class Variant:
    """A system with one order of its candidates, or one kind of search: one row of the report.

    Attributes:
        fingerprint: every setting that decides the responses; a resumed run must have the same.
        rank: query_id → ranking; called from several threads.
        is_timed: run again at every further number of concurrent queries.
        order: in which the system receives the candidates.
    """

    name: str
    fingerprint: Mapping[str, object]
    rank: Callable[[str], RankedList]
    is_timed: bool = False
    order: Order = ORIGINAL


def variant_folder(variant: Variant, variants: Sequence[Variant], out: Path) -> Path:
    """The folder of a variant's results: `out` itself if there is only one variant, else a folder inside it."""
    return out if len(variants) == 1 else out / variant.name


def run_variants(
    variants: Sequence[Variant], query_ids: Sequence[str], out: Path, loads: Sequence[int], console: Console
) -> dict[int, Responses]:
    """Runs all variants at the first load, and those that are timed again at every further load.

    Queries whose responses are in the trace files of a killed run are not run again.

    Args:
        loads: numbers of concurrent queries, at least one.

    Returns:
        Responses by load.

    Raises:
        ConfigError: `out` holds responses of a run with other settings.
        RerankError: a service refused a query; earlier responses are kept.
    """
    files = [variant_folder(variant, variants, out) / TRACE_FILE for variant in variants]
    responses = {loads[0]: _run(variants, query_ids, files, loads[0], console)}
    timed = [variant for variant in variants if variant.is_timed]
    for load in loads[1:]:
        files = [variant_folder(variant, variants, out) / f"trace-{load}.jsonl" for variant in timed]
        responses[load] = _run(timed, query_ids, files, load, console, f", {load} concurrent queries")
    return responses


def _run(
    variants: Sequence[Variant],
    query_ids: Sequence[str],
    paths: Sequence[Path],
    load: int,
    console: Console,
    suffix: str = "",
) -> Responses:
    # All files are opened before the first query, so that a wrong --out is refused at once.
    files = [
        TraceFile(path, {**variant.fingerprint, "load": load}) for variant, path in zip(variants, paths, strict=True)
    ]
    for variant, file in zip(variants, files, strict=True):
        title, done = f"{variant.name}{suffix}", len(file.responses)
        if done:
            console.print(f"{title}: resumed with {done} of {len(query_ids)} queries done")
        with show_progress(console) as progress:
            for number in _run_concurrently(variant, query_ids, file, load):
                progress.report(f"{title}, queries", number, len(query_ids))
        file.finish(query_ids)
    return {variant.name: list(file.responses.values()) for variant, file in zip(variants, files, strict=True)}


def _run_concurrently(variant: Variant, query_ids: Sequence[str], file: TraceFile, load: int) -> Iterator[int]:
    """Runs the queries without a response. Yields the number of responses at the start and after each of them."""
    remaining = [query_id for query_id in query_ids if query_id not in file.responses]
    done = len(query_ids) - len(remaining)
    yield done
    with ThreadPoolExecutor(load) as threads:
        futures = [threads.submit(_run_query, variant, query_id, file) for query_id in remaining]
        try:
            for future in as_completed(futures):
                future.result()
                done += 1
                yield done
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _run_query(variant: Variant, query_id: str, file: TraceFile) -> None:
    """Writes the response at once, so that the failure of another query does not lose it."""
    start = time.perf_counter()
    ranking = variant.rank(query_id)
    file.add(Response(query_id, (time.perf_counter() - start) * 1000, time.time(), ranking))
