"""The main job from start to end on real text: index, server, calls over a socket, and what reranking changed."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import ir_measures
from ir_measures import RR, nDCG
from rich.console import Console
from rich.table import Table

from rerank import __version__
from rerank.collections import open_collection
from rerank.commands.display import fields_table, indexing_progress, snippet
from rerank.config import ServiceConfig
from rerank.errors import ConfigError, IndexMismatch
from rerank.retrieval.index import Manifest, build_index, read_manifest
from rerank.service.client import RerankClient
from rerank.service.process import service_process
from rerank.v1 import rerank_pb2 as pb

_EXAMPLE = "parse a date string with a known format"
_MEASURES = (nDCG @ 10, RR(rel=2) @ 10)


@dataclass(frozen=True)
class System:
    """What one row of the table measures: a first stage, the model behind it, and its schedule if not its own."""

    name: str
    first_stage: pb.FirstStage
    model: str
    strategy: pb.Strategy | None = None


#: FIRST reads text, which takes it some tenths of a second a window on a CPU, so it gets one window.
_CASCADE = pb.Strategy(kind=pb.STRATEGY_KIND_CASCADE, preranker="pe-rank", window_size=10)
_SYSTEMS = (
    System("BM25", pb.FIRST_STAGE_BM25, "identity"),
    System("dense", pb.FIRST_STAGE_DENSE, "identity"),
    System("hybrid", pb.FIRST_STAGE_HYBRID_RRF, "identity"),
    System("hybrid + PE-Rank", pb.FIRST_STAGE_HYBRID_RRF, "pe-rank"),
    System("hybrid + PE-Rank, its first 10 + FIRST", pb.FIRST_STAGE_HYBRID_RRF, "first", _CASCADE),
)
#: Model → how people write it.
_TITLES = {"pe-rank": "PE-Rank", "first": "FIRST"}


def run_demo(work: Path, console: Console, ranker: str = "pe-rank") -> None:
    """Shows `ranker` (pe-rank or first) at work on one query, and compares all systems on all queries.

    Raises:
        ConfigError: no such ranker, or the service does not start.
    """
    if ranker not in _TITLES:
        raise ConfigError(f"ranker {ranker!r} is none of {', '.join(_TITLES)}")
    manifest = _index(work / "index", console)
    console.print(
        f"index    {manifest.passages:,} passages of {manifest.collection}; "
        f"BM25 {manifest.passages / manifest.read_s:,.0f}/s, vectors {manifest.passages / manifest.encode_s:,.0f}/s"
    )
    service = ServiceConfig(listen="127.0.0.1:0", index=work / "index")
    with service_process(service) as address, RerankClient(address) as client:
        console.print(f"service  gRPC at {address}, in a process of its own\n")
        _show_example(client, console, ranker)
        console.print(_comparison(client))


def queries() -> dict[str, str]:
    """The hand-written queries of the collection, text by query_id."""
    lines = (resources.files("rerank") / "collections" / "pydoc_queries.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["query_id"]: row["text"] for row in rows}


def qrels() -> list[ir_measures.Qrel]:
    """Their judgements: 2 the answer, 1 useful, 0 judged and neither."""
    path = resources.files("rerank") / "collections" / "pydoc_qrels.txt"
    return list(ir_measures.read_trec_qrels(path.read_text(encoding="utf-8")))


def _index(folder: Path, console: Console) -> Manifest:
    """The index of this interpreter's documentation, built unless it is there."""
    collection = open_collection("pydoc")
    try:
        manifest = read_manifest(folder)
        if manifest.collection == collection.name and manifest.versions["rerank"] == __version__:
            return manifest
    except IndexMismatch:
        pass
    from rerank.models.encoder import Encoder  # imports torch, which the service does for itself

    shutil.rmtree(folder, ignore_errors=True)
    with indexing_progress(console) as progress:
        return build_index(collection, folder, Encoder(), hnsw=False, report=progress.report)


def _show_example(client: RerankClient, console: Console, ranker: str) -> None:
    """One query: Search for the first stage's order, Rerank for the final one, side by side."""
    found = client.search(_EXAMPLE, first_stage=pb.FIRST_STAGE_BM25, depth=20, model="identity", return_passages=True)
    reranked = client.rerank(_EXAMPLE, [(hit.doc_id, hit.text) for hit in found.results], model=ranker)
    title = _TITLES[ranker]
    table = Table(title=f"“{_EXAMPLE}”: BM25's order, and {title}'s order of the same 20", title_justify="left")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("BM25", overflow="fold")
    table.add_column(title, overflow="fold")
    table.add_column("was", justify="right", no_wrap=True)
    table.add_column(f"{title}'s passage", no_wrap=True)
    text_of = {hit.doc_id: hit.text for hit in found.results}
    for rank, (before, after) in enumerate(zip(found.results[:10], reranked.results[:10], strict=True), start=1):
        text = snippet(text_of[after.doc_id].partition("\n")[2], chars=40)
        table.add_row(str(rank), before.doc_id, after.doc_id, str(after.original_position + 1), text)
    console.print(table)
    console.print(fields_table("what ran", reranked.execution))


def _comparison(client: RerankClient) -> Table:
    """nDCG@10, RR and latency of every system over all queries."""
    texts, judgements = queries(), qrels()
    table = Table(title=f"{len(texts)} queries of pydoc, depth 100", title_justify="left")
    table.add_column("system")
    for column in (*map(str, _MEASURES), "p50 ms", "p95 ms"):
        table.add_column(column, justify="right")
    for system in _SYSTEMS:
        run, latencies_ms = _run(client, system, texts)
        means = _means(judgements, run)
        percentiles = quantiles(latencies_ms, n=20)
        table.add_row(
            system.name, *(f"{mean:.3f}" for mean in means), f"{percentiles[9]:.1f}", f"{percentiles[18]:.1f}"
        )
    return table


def _run(
    client: RerankClient, system: System, texts: dict[str, str]
) -> tuple[list[ir_measures.ScoredDoc], list[float]]:
    """The run of a system and its latencies in milliseconds, after one call to warm up."""
    options: dict[str, Any] = {"first_stage": system.first_stage, "model": system.model, "strategy": system.strategy}
    client.search(_EXAMPLE, **options)
    run, latencies_ms = [], []
    for query_id, text in texts.items():
        begun = time.perf_counter()
        reply = client.search(text, depth=100, **options)
        latencies_ms.append((time.perf_counter() - begun) * 1000)
        run += [ir_measures.ScoredDoc(query_id, result.doc_id, result.score) for result in reply.results]
    return run, latencies_ms


def _means(judgements: Sequence[ir_measures.Qrel], run: Sequence[ir_measures.ScoredDoc]) -> list[float]:
    """The mean of each measure over all judged queries; a query without results counts with 0."""
    metrics = list(ir_measures.iter_calc(_MEASURES, judgements, run))
    return [fmean(metric.value for metric in metrics if metric.measure == measure) for measure in _MEASURES]
