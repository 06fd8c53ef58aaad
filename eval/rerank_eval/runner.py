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
        order: in which the system receives the candidates.
    """

    name: str
    fingerprint: Mapping[str, object]
    rank: Callable[[str], RankedList]
    order: Order = ORIGINAL


def variant_folder(variant: Variant, variants: Sequence[Variant], out: Path) -> Path:
    """The folder of a variant's results: `out` itself if there is only one variant, else a folder inside it."""
    return out if len(variants) == 1 else out / variant.name


def run_variants(
    variants: Sequence[Variant], query_ids: Sequence[str], out: Path, concurrency: int, console: Console
) -> Responses:
    """Runs all variants.

    Queries whose responses are in the trace files of a killed run are not run again.

    Args:
        concurrency: number of concurrent queries.

    Raises:
        ConfigError: `out` holds responses of a run with other settings.
        RerankError: a service refused a query; earlier responses are kept.
    """
    # All files are opened before the first query, so that a wrong --out is refused at once.
    files = [
        TraceFile(variant_folder(each, variants, out) / TRACE_FILE, {**each.fingerprint, "load": concurrency})
        for each in variants
    ]
    for variant, file in zip(variants, files, strict=True):
        if done := len(file.responses):
            console.print(f"{variant.name}: resumed with {done} of {len(query_ids)} queries done")
        with show_progress(console) as progress:
            for number in _run_concurrently(variant, query_ids, file, concurrency):
                progress.report(f"{variant.name}, queries", number, len(query_ids))
        file.finish(query_ids)
    return {variant.name: list(file.responses.values()) for variant, file in zip(variants, files, strict=True)}


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
    ranking = variant.rank(query_id)
    file.add(Response(query_id, (time.perf_counter() - start) * 1000, time.time(), ranking))
