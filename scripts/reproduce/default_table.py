"""Prints the table of docs/evidence/results.md: the default model and the first stage, on all judged lists.

    python -m scripts.reproduce.default_table --data DATA --work WORK [--only LIST]

DATA holds cacm, cranfield, vaswani, trec-dl-2019, trec-dl-2021 and trec-dl-2019-first-stages. WORK keeps indexes and
results, so that a call that was stopped resumes: use a new one for other settings.

A list comes in up to three forms: as texts with scores, as a client sends it; the same, and the client says that it is
neural; and found by a search of the service's own index, which has all vectors.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import typer
from rerank_eval.report import markdown_table
from rerank_eval.statistics import SIGNIFICANT, Comparison, compare

from rerank.collections import Collection, open_collection
from rerank.config import EngineConfig, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.readers.candidates import read_requests
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank.reranking.reranker import AsyncReranker, load_reranker
from rerank.retrieval.build import BuildSettings, build_index
from rerank.retrieval.hybrid import best, reciprocal_rank
from rerank.types import FirstStage, FirstStageKind, Passage, Query, RankOptions
from rerank.util.files import atomic_file

COLLECTIONS = ("cacm", "cranfield", "pydoc", "vaswani")
#: Request files of BM25, with the files of models that they are fused with.
_BM25 = {
    "trec-dl-2021/requests": ("trec-dl-2021/splade-pp",),
    "trec-dl-2019/requests": ("trec-dl-2019-first-stages/ada2", "trec-dl-2019-first-stages/tas-b"),
}
_NEURAL = (
    "trec-dl-2021/splade-pp",
    "trec-dl-2019-first-stages/ada2",
    "trec-dl-2019-first-stages/rep-llama",
    "trec-dl-2019-first-stages/splade-pp-ensemble-distil",
    "trec-dl-2019-first-stages/tas-b",
)
#: Gains below minus this are harm.
HARM = 0.005
#: The lists of a collection share most of their texts, which are read once.
_ENGINE = EngineConfig(text_vector_cache_bytes=2 << 30)

#: The candidates of a query, best first, with their scores.
FirstStageList = tuple[Query, Sequence[Passage]]
#: doc_id → grade.
Grades = Mapping[str, int]


class JudgedLists(NamedTuple):
    """Lists of a first stage.

    Attributes:
        stage: of the search that finds them; None if no search does.
        is_neural: whether a client may say so.
    """

    name: str
    lists: Sequence[FirstStageList]
    grades: Mapping[str, Grades]
    stage: FirstStage | None = None
    is_neural: bool = False


class Row(NamedTuple):
    """A list in its forms, each compared with the first stage by nDCG@10; None where it has no such form."""

    name: str
    texts: Comparison
    neural: Comparison | None = None
    search: Comparison | None = None


def collection_of(name: str, data: Path) -> Collection:
    return open_collection(name if name == "pydoc" else str(data / name))


def service_of(name: str, data: Path, work: Path) -> AsyncReranker:
    """The bundled models over a collection's index, which is built if it is missing."""
    folder = work / f"{name}-index"
    if not folder.exists():
        settings = BuildSettings(encoder_dtype="auto")
        build_index(collection_of(name, data), folder, Encoder(), settings=settings, sparse_encoder=SparseEncoder())
    return load_reranker(ServiceConfig(index=folder, engine=_ENGINE))


async def searched_lists(name: str, reranker: AsyncReranker, data: Path, depth: int) -> list[JudgedLists]:
    """The lists that searches of a collection find, and the BM25 and dense ones fused as OpenSearch does."""
    collection = collection_of(name, data)
    grades = grades_by_query(collection.qrels("test"))
    queries = [query for query in collection.queries() if query.query_id in grades]
    found: dict[str, list[FirstStageList]] = {}
    for stage in FirstStage:
        options = RankOptions(model="identity")
        results = [await reranker.search(query, stage, depth, options) for query in queries]
        found[stage] = [
            (query, [item.passage for item in result.ranking.ranked])
            for query, result in zip(queries, results, strict=True)
            if result.hits
        ]
    judged = [
        JudgedLists(f"{name}, {stage}", found[stage], grades, stage, stage is FirstStage.DENSE) for stage in FirstStage
    ]
    fused = list(_fused(found[FirstStage.BM25], found[FirstStage.DENSE], "minmax", depth))
    return [*judged, JudgedLists(f"{name}, hybrid-minmax", fused, grades)]


def sent_lists(data: Path, depth: int) -> Iterator[JudgedLists]:
    """The lists of request files, and those that are fused of them."""
    for name in (*_BM25, *_NEURAL):
        grades = grades_by_query(read_qrels(data / name.partition("/")[0].removesuffix("-first-stages") / "qrels.txt"))
        lists = _read(data / f"{name}.jsonl", grades, depth)
        yield JudgedLists(name, lists, grades, is_neural=name in _NEURAL)
        for other in _BM25.get(name, ()):
            others = _read(data / f"{other}.jsonl", grades, depth)
            for how in ("rrf", "minmax"):
                fused = list(_fused(lists, others, how, depth))
                yield JudgedLists(f"{name} with {Path(other).name}, {how}", fused, grades)


def _read(path: Path, grades: Mapping[str, Grades], depth: int) -> list[FirstStageList]:
    judged = (request for request in read_requests(path) if request.query.query_id in grades)
    return [(request.query, request.candidates[:depth]) for request in judged]


def _fused(
    lists: Sequence[FirstStageList], others: Sequence[FirstStageList], how: str, depth: int
) -> Iterator[FirstStageList]:
    """Fuses the lists of equal queries by reciprocal ranks, or by min-max and mean, OpenSearch's default."""
    others_of = {query.query_id: passages for query, passages in others}
    for query, passages in lists:
        both = [passages, others_of.get(query.query_id, [])]
        known = {passage.doc_id: passage for some in both for passage in some}
        runs = [{passage.doc_id: passage.score or 0.0 for passage in some} for some in both]
        scores = reciprocal_rank(runs) if how == "rrf" else _min_max_mean(runs)
        yield query, [replace(known[doc_id], score=score) for doc_id, score in best(scores, depth).items()]


def _min_max_mean(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    fused: dict[str, float] = {}
    for run in runs:
        lowest, highest = min(run.values(), default=0.0), max(run.values(), default=0.0)
        for doc_id, score in run.items():
            share = (score - lowest) / (highest - lowest) if highest > lowest else 1.0
            fused[doc_id] = fused.get(doc_id, 0.0) + share / len(runs)
    return fused


def ndcg_at_10(doc_ids: Sequence[str], grades: Grades) -> float:
    """nDCG@10 of an order; 0 if nothing is relevant."""
    ideal = _dcg(sorted(grades.values(), reverse=True))
    return _dcg([grades.get(doc_id, 0) for doc_id in doc_ids]) / ideal if ideal else 0.0


def _dcg(grades: Sequence[int]) -> float:
    return sum(max(grade, 0) / math.log2(rank + 1) for rank, grade in enumerate(grades[:10], 1))


async def measured(judged: JudgedLists, reranker: AsyncReranker, model: str, depth: int) -> dict[str, list[float]]:
    """nDCG@10 of each list by form, and of its `first_stage`."""
    values: dict[str, list[float]] = {"first_stage": []}
    for query, passages in judged.lists:
        grades = judged.grades[query.query_id]
        texts = [Passage(passage.doc_id, passage.text, passage.score) for passage in passages]
        values["first_stage"].append(ndcg_at_10([passage.doc_id for passage in passages], grades))
        orders = {"texts": await reranker.rerank(query, texts, RankOptions(model=model))}
        if judged.is_neural:
            options = RankOptions(model=model, first_stage_weight=FirstStageKind.NEURAL)
            orders["neural"] = await reranker.rerank(query, texts, options)
        if judged.stage is not None:
            found = await reranker.search(query, judged.stage, depth, RankOptions(model=model))
            orders["search"] = found.ranking
        for form, ranking in orders.items():
            order = [item.passage.doc_id for item in ranking.ranked]
            values.setdefault(form, []).append(ndcg_at_10(order, grades))
    return values


async def rows(data: Path, work: Path, model: str, only: str, depth: int) -> AsyncIterator[Row]:
    """Measures a model on each list whose name contains `only`."""
    for name in COLLECTIONS:
        names = [f"{name}, {label}" for label in (*FirstStage, "hybrid-minmax")]
        kept = {of_list: _kept(of_list, work / model, depth) for of_list in names if only in of_list}
        if all(file.exists() for file in kept.values()):
            for of_list, file in kept.items():
                yield _kept_row(of_list, file)
            continue
        async with service_of(name, data, work) as reranker:
            for judged in await searched_lists(name, reranker, data, depth):
                if only in judged.name:
                    yield await _row(judged, reranker, work / model, depth)
    async with load_reranker(ServiceConfig(engine=_ENGINE)) as reranker:
        for judged in sent_lists(data, depth):
            if only in judged.name:
                yield await _row(judged, reranker, work / model, depth)


async def _row(judged: JudgedLists, reranker: AsyncReranker, folder: Path, depth: int) -> Row:
    """Measures the lists with the model that the folder is named after, unless it holds their result."""
    kept = _kept(judged.name, folder, depth)
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        result = await measured(judged, reranker, folder.name, depth)
        with atomic_file(kept) as partial:
            partial.write_text(json.dumps(result), encoding="utf-8")
    return _kept_row(judged.name, kept)


def _kept(name: str, folder: Path, depth: int) -> Path:
    """The file of the result of lists."""
    return folder / f"{name.replace('/', '-')}-{depth}.json"


def _kept_row(name: str, kept: Path) -> Row:
    values = json.loads(kept.read_text("utf-8"))
    reference = values.pop("first_stage")
    return Row(name, **{form: compare(of_form, reference) for form, of_form in values.items()})


def as_markdown(found: Sequence[Row]) -> str:
    """The table, with the means over the lists, and the number of those that the model harms, for each form."""
    cells = [[row.name, f"{row.texts.reference:.4f}", *map(_cell, row[1:])] for row in found]
    head = ["list", "first stage", "as texts", "said to be neural", "own search"]
    return f"{markdown_table(head, cells)}\n\n" + "\n".join(_verdicts(found)) + "\n"


def _cell(c: Comparison | None) -> str:
    return "" if c is None else f"{c.mean:.4f} ({c.difference:+.4f}, p {c.p:.2g}, {c.wins}/{c.ties}/{c.losses})"


def _verdicts(found: Sequence[Row]) -> Iterator[str]:
    """A sentence for each form."""
    stated = [row.neural or row.texts for row in found]
    forms = {
        "As texts, nothing stated": [row.texts for row in found],
        "As texts, neural lists said to be so": stated,
        "Own search": [row.search for row in found if row.search],
    }
    for form, compared in forms.items():
        if compared:
            worse = [c for c in compared if c.difference < 0]
            yield (
                f"{form}: mean gain {fmean(c.difference for c in compared):+.4f}, worst "
                f"{min(c.difference for c in compared):+.4f}; significantly worse (p < .05, each alone) on "
                f"{sum(c.p < SIGNIFICANT for c in worse)} of {len(compared)}, worse by more than {HARM:g} on "
                f"{sum(c.difference < -HARM for c in worse)}."
            )


def main(
    data: Annotated[Path, typer.Option(help="Folder with the datasets.")],
    work: Annotated[Path, typer.Option(help="Folder for indexes and results; use a new one for new settings.")],
    model: Annotated[str, typer.Option(help="A bundled model.")] = "default",
    only: Annotated[str, typer.Option(help="A part of the names of the lists that are measured.")] = "",
    depth: Annotated[int, typer.Option(min=2, max=1000, help="Number of candidates of a list.")] = 100,
) -> None:
    """Measure a model on all lists and print the table."""

    async def collect() -> list[Row]:
        return [row async for row in rows(data, work, model, only, depth)]

    print(as_markdown(asyncio.run(collect())))


if __name__ == "__main__":
    typer.run(main)
