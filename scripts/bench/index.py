"""Measures search over indexes of several sizes: latency of each first stage, resident memory, disk, build and recall.

python -m scripts.bench.index --queries million --work bench-indexes indexes/10k indexes/100k indexes/million

Each index is searched with each kind of dense search, for which it is built in --work without another encoding. A
service on one processor core, with the bundled models, answers the queries one after the other. Latency is that of the
first stage with a depth of 100: encoding of the query, search, and reading of the passages. Resident memory is that of
the service after the queries. The figures stand in --work as JSON, one file per service, and are not measured again.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, get_args

import matplotlib as mpl
import numpy as np
import typer
from matplotlib import pyplot

from rerank import RerankClient
from rerank.collections import beir
from rerank.commands.console import PlainConsole
from rerank.commands.progress import show_progress
from rerank.files import atomic_file
from rerank.models.encoder import Encoder
from rerank.retrieval.build import BuildSettings, VectorStages
from rerank.retrieval.build_folder import build_folder
from rerank.retrieval.index import read_manifest, write_manifest
from rerank.retrieval.index_format import DenseKind
from rerank.retrieval.vector_index import MIN_IVF_PQ_PASSAGES
from rerank.v1 import rerank_pb2 as pb
from scripts.service import Service, running_service

_FIRST_STAGES = {
    "BM25": pb.FIRST_STAGE_BM25,
    "dense": pb.FIRST_STAGE_DENSE,
    "hybrid": pb.FIRST_STAGE_HYBRID_RRF,
}
_DEPTH, _WARM_UP = 100, 20
_MIB = 1024 * 1024

console = PlainConsole()


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of a first stage, and processor time of the service per query, in milliseconds."""

    p50_ms: float
    p95_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """Recall, latency, memory, disk space and build time of one index.

    Attributes:
        passages: their number.
        dense: kind of dense search.
        recall: recall@100 against exact search.
        latency: by first stage.
        resident_mib: resident memory of the service; of it, `private_mib` is memory of its own and no mapped file.
        disk_mib: size of the index by part.
        build_s: duration of the stages of the build.
    """

    passages: int
    dense: DenseKind
    recall: float
    latency: dict[str, Latency]
    resident_mib: float
    private_mib: float
    disk_mib: dict[str, float]
    build_s: dict[str, float]


def main(
    indexes: Annotated[list[Path], typer.Argument(help="Indexes of any kind, the smallest one first.")],
    queries: Annotated[Path, typer.Option(help="Folder with a queries.jsonl in BEIR layout.")],
    work: Annotated[Path, typer.Option(help="Folder for the indexes of all kinds and the figures.")],
    number: Annotated[int, typer.Option(min=1, help="Number of queries.")] = 300,
    plot: Annotated[Path | None, typer.Option(help="File to draw latency and memory into.")] = None,
) -> None:
    """Print the figures of all indexes with all kinds of dense search."""
    work.mkdir(parents=True, exist_ok=True)
    texts = [query.text for query in beir.queries(queries)][:number]
    figures = [
        _figures(index, kind, work, texts) for index in indexes for kind in get_args(DenseKind) if _fits(index, kind)
    ]
    for each in figures:
        _print(each)
    if plot is not None:
        _draw(figures, plot)


def _fits(index: Path, kind: DenseKind) -> bool:
    return kind != "ivf-pq" or read_manifest(index).passages >= MIN_IVF_PQ_PASSAGES


def _figures(index: Path, kind: DenseKind, work: Path, queries: Sequence[str]) -> IndexFigures:
    """Measures an index with one kind of dense search, unless its figures are there."""
    path = work / f"{index.name}-{kind}.json"
    if not path.exists():
        measured = _measured(_variant(index, kind, work), queries)
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(asdict(measured), indent=2), encoding="utf-8")
    stored = json.loads(path.read_text(encoding="utf-8"))
    return IndexFigures(**stored | {"latency": {name: Latency(**values) for name, values in stored["latency"].items()}})


def _variant(index: Path, kind: DenseKind, work: Path) -> Path:
    """An index with the same files and another kind of dense search."""
    out = work / f"{index.name}-{kind}"
    if out.exists():
        return out
    manifest = read_manifest(index)
    settings = BuildSettings(kind, manifest.encoder_dtype)
    with (
        build_folder(out, {"index": str(index), "dense": kind}) as build,
        show_progress(console, "passages") as progress,
    ):
        build.stage("link", partial(_link, index, build.index))
        stages = VectorStages(build, Encoder(manifest.encoder.name), settings, progress.report)
        build.stage("dense", stages.dense)
        seconds = manifest.seconds | {"dense": build.seconds["dense"]}
        changed = {"dense": kind, "seconds": seconds} | stages.quality()
        write_manifest(build.index, manifest.model_copy(update=changed))
        build.finish()
    return out


def _link(index: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(index, folder, copy_function=os.link, ignore=shutil.ignore_patterns("manifest.json", "*.faiss"))


def _measured(index: Path, queries: Sequence[str]) -> IndexFigures:
    manifest = read_manifest(index)
    settings: dict[str, object] = {"index": str(index), "http": None, "telemetry": {}}
    with _one_core(), running_service(settings) as service:
        with RerankClient(service.address) as client:
            latency = {name: _latency(client, service, stage, queries) for name, stage in _FIRST_STAGES.items()}
        memory = service.statistics.memory_info()
    return IndexFigures(
        passages=manifest.passages,
        dense=manifest.dense,
        recall=manifest.dense_recall_at_100,
        latency=latency,
        resident_mib=round(memory.rss / _MIB, 1),
        private_mib=round((memory.rss - memory.shared) / _MIB, 1),
        disk_mib=_disk_mib(index),
        build_s=manifest.seconds,
    )


@contextmanager
def _one_core() -> Iterator[None]:
    """Processes that start in the block run on one core only, and this one on the others."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _latency(client: RerankClient, service: Service, stage: pb.FirstStage, queries: Sequence[str]) -> Latency:
    def search(query: str) -> float:
        return client.search(query, first_stage=stage, depth=_DEPTH, model="identity").first_stage_ms

    for query in queries[:_WARM_UP]:
        search(query)
    before_s = service.cpu_s()
    values = [search(query) for query in queries]
    cpu_ms = (service.cpu_s() - before_s) * 1000 / len(queries)
    p50, p95 = np.percentile(values, [50, 95])
    return Latency(round(float(p50), 2), round(float(p95), 2), round(cpu_ms, 2))


def _disk_mib(index: Path) -> dict[str, float]:
    """Size of each file of the index, and of the folder bm25."""
    sizes: dict[str, float] = {}
    for name, file in read_manifest(index).files.items():
        part = name.split("/")[0]
        sizes[part] = round(sizes.get(part, 0) + file.bytes / _MIB, 2)
    return sizes


def _print(figures: IndexFigures) -> None:
    console.print(f"{figures.passages:,} passages, {figures.dense}, recall@100 {figures.recall:.3f}")
    for name, latency in figures.latency.items():
        console.print(
            f"  {name}: p50 {latency.p50_ms:.1f} ms, p95 {latency.p95_ms:.1f} ms, "
            f"processor time per query with all of the service {latency.cpu_ms:.1f} ms"
        )
    console.print(f"  resident {figures.resident_mib:,.0f} MiB, of it private {figures.private_mib:,.0f} MiB")
    console.print(f"  disk, MiB: {figures.disk_mib}, in all {sum(figures.disk_mib.values()):,.0f}")
    console.print(f"  build, s: {figures.build_s}")


def _draw(figures: Sequence[IndexFigures], path: Path) -> None:
    """Draws p95 and resident memory over the number of passages."""
    mpl.use("Agg")
    chart, (latency, memory) = pyplot.subplots(1, 2, figsize=(10, 4))
    for kind in get_args(DenseKind):
        of_kind = [each for each in figures if each.dense == kind]
        sizes = [each.passages for each in of_kind]
        latency.plot(sizes, [each.latency["dense"].p95_ms for each in of_kind], marker="o", label=f"dense, {kind}")
        memory.plot(sizes, [each.resident_mib for each in of_kind], marker="o", label=kind)
    flat = [each for each in figures if each.dense == "flat"]
    latency.plot([each.passages for each in flat], [each.latency["BM25"].p95_ms for each in flat], "k--o", label="BM25")
    latency.axhline(50, color="0.6", linewidth=0.8)
    memory.axhline(3 * 1024, color="0.6", linewidth=0.8)
    latency.set(xscale="log", yscale="log", xlabel="passages", ylabel="first stage, p95 on one core, ms")
    memory.set(xscale="log", xlabel="passages", ylabel="resident memory of the service, MiB")
    for axes in (latency, memory):
        axes.legend(frameon=False)
    chart.savefig(path, bbox_inches="tight", dpi=80)
    pyplot.close(chart)


if __name__ == "__main__":
    typer.run(main)
