"""Prints the table of docs/evidence/results.md: the default model beside the first stage, on all judged lists.

    python -m scripts.reproduce.medquad_collection --medquad DATA/medquad/qa.jsonl.gz --out WORK/medquad
    python -m scripts.reproduce.default_table --data DATA --work WORK

DATA holds cacm, cranfield, vaswani, trec-dl-2019, trec-dl-2021 and trec-dl-2019-first-stages. WORK keeps indexes and
results, so that a call that was stopped resumes: use a new one for other settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import typer
from rerank_eval.evaluation import run_evaluation
from rerank_eval.report import markdown_table
from rerank_eval.settings import BeirSettings, EvaluationSettings, TrecDLSettings
from rerank_eval.statistics import SIGNIFICANT, Comparison, compare

from rerank.collections import open_collection
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.retrieval.build import BuildSettings, build_index
from rerank.types import FirstStage, FirstStageKind

#: The first stages by which each collection is searched.
STAGES = (FirstStage.BM25, FirstStage.HYBRID_RRF, FirstStage.HYBRID_Z_SCORE)
COLLECTIONS = ("cacm", "cranfield", "medquad", "pydoc", "vaswani")
#: Request files with the kind of their first stage.
_REQUESTS = {
    "trec-dl-2021/requests": FirstStageKind.LEXICAL,
    "trec-dl-2021/splade-pp": FirstStageKind.NEURAL,
    "trec-dl-2019/requests": FirstStageKind.LEXICAL,
    "trec-dl-2019-first-stages/ada2": FirstStageKind.NEURAL,
    "trec-dl-2019-first-stages/rep-llama": FirstStageKind.NEURAL,
    "trec-dl-2019-first-stages/splade-pp-ensemble-distil": FirstStageKind.NEURAL,
    "trec-dl-2019-first-stages/tas-b": FirstStageKind.NEURAL,
}
#: MedQuAD has more questions than its rows need.
MOST_QUERIES = {"medquad": 150}


class Row(NamedTuple):
    """A list with a model compared with its first stage, by nDCG@10."""

    name: str
    compared: Comparison


def rows(data: Path, work: Path, model: str, only: str) -> Iterator[Row]:
    """Measures a model on each list whose name contains `only`."""
    for name in COLLECTIONS:
        for stage in STAGES:
            if only in f"{name}, {stage}":
                yield _row(f"{name}, {stage}", _search(name, stage, data, work, model))
    for name, kind in _REQUESTS.items():
        if only in f"{name}, {kind}":
            yield _row(f"{name}, {kind}", _rerank(name, kind, data, work, model))


def collection_name(name: str, data: Path, work: Path) -> str:
    """The folder of a collection, or pydoc."""
    return {"pydoc": "pydoc", "medquad": str(work / "medquad")}.get(name, str(data / name))


def index_folder(name: str, work: Path) -> Path:
    """The folder of a collection's index."""
    return work / f"{name}-index"


def _search(name: str, stage: FirstStage, data: Path, work: Path, model: str) -> EvaluationSettings:
    collection = collection_name(name, data, work)
    index = index_folder(name, work)
    if not index.exists():
        settings = BuildSettings(encoder_dtype="auto")
        build_index(open_collection(collection), index, Encoder(), settings=settings, sparse_encoder=SparseEncoder())
    return BeirSettings(
        collection=[collection],
        index=[index],
        first_stage=stage,
        model=["identity", model],
        limit=MOST_QUERIES.get(name, 0),
        out=work / model / f"{name}-{stage}",
    )


def _rerank(name: str, kind: FirstStageKind, data: Path, work: Path, model: str) -> EvaluationSettings:
    return TrecDLSettings(
        requests=[data / f"{name}.jsonl"],
        qrels=[str(data / name.partition("/")[0].removesuffix("-first-stages") / "qrels.txt")],
        first_stage_weight=kind,
        model=["identity", model],
        out=work / model / name,
    )


def _row(name: str, settings: EvaluationSettings) -> Row:
    (report,) = run_evaluation(settings)
    first_stage, reranked = (result.metrics.values() for result in report.results[1:])
    return Row(name, compare(reranked, first_stage))


def as_markdown(model: str, found: Sequence[Row]) -> str:
    """The table, with the mean over the lists, and the number of those that the model makes worse."""
    cells = [
        [
            name,
            str(c.queries),
            f"{c.reference:.4f}",
            f"{c.mean:.4f}",
            f"{c.difference:+.4f} ± {(c.interval[1] - c.interval[0]) / 2:.3f}",
            f"{c.p:.2g}",
            f"{c.wins}/{c.ties}/{c.losses}",
        ]
        for name, c in found
    ]
    first_stage, gain = (fmean(values) for values in zip(*((c.reference, c.difference) for _, c in found), strict=True))
    cells.append(["mean", "", f"{first_stage:.4f}", f"{first_stage + gain:.4f}", f"{gain:+.4f}", "", ""])
    head = ["list", "queries", "first stage", model, "gain, 95 %", "p", "won/tied/lost"]
    worse = [c for _, c in found if c.difference < 0]
    return (
        f"{markdown_table(head, cells)}\n\n"
        f"Significantly worse (p < .05, each alone) on {sum(c.p < SIGNIFICANT for c in worse)} of {len(found)} lists; "
        f"worse by more than .005 on {sum(c.difference < -0.005 for c in worse)}.\n"
    )


def main(
    data: Annotated[Path, typer.Option(help="Folder with the datasets.")],
    work: Annotated[Path, typer.Option(help="Folder for indexes and results; use a new one for new settings.")],
    model: Annotated[str, typer.Option(help="A bundled model.")] = "default",
    only: Annotated[str, typer.Option(help="A part of the names of the lists that are measured.")] = "",
) -> None:
    """Measure a model on all lists and print the table."""
    print(as_markdown(model, list(rows(data, work, model, only))))


if __name__ == "__main__":
    typer.run(main)
