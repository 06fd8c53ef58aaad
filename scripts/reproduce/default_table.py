"""Prints the table of docs/evidence/results.md: the default model and the first stage, on all judged lists.

    python -m scripts.reproduce.default_table --data DATA --work WORK [--only LIST]

DATA holds cacm, cranfield, vaswani, trec-dl-2019, trec-dl-2021 and trec-dl-2019-first-stages. WORK keeps indexes and
rows, so that a call that was stopped resumes: use a new one for another state of the code.

A list comes in up to three forms: as texts with scores, as a client sends it; the same, and the client says that it is
neural; and found by a search of the service's own index, which has all vectors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import typer
from ir_measures import nDCG
from pydantic import TypeAdapter
from rerank_eval.measures import Run, by_rank, measure
from rerank_eval.report import markdown_table
from rerank_eval.statistics import SIGNIFICANT, Comparison, compare

from rerank.collections import open_collection
from rerank.config import EngineConfig, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.readers.candidates import CandidateList, read_requests
from rerank.readers.qrels import Qrel, read_qrels
from rerank.reranking.blocking import Reranker
from rerank.retrieval.build import BuildSettings, build_index
from rerank.retrieval.hybrid import best, reciprocal_rank
from rerank.types import FirstStage, FirstStageKind, Passage, RankOptions
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


class JudgedLists(NamedTuple):
    """Lists of a first stage.

    Attributes:
        stage: of the search that finds them; None if no search does.
        is_neural: whether a client may say so.
    """

    name: str
    lists: Sequence[CandidateList]
    qrels: Sequence[Qrel]
    stage: FirstStage | None = None
    is_neural: bool = False


class Row(NamedTuple):
    """A list in its forms, each compared with the first stage by nDCG@10; None where it has no such form."""

    name: str
    texts: Comparison
    neural: Comparison | None = None
    search: Comparison | None = None


_ROW = TypeAdapter(Row)


def searched_lists(location: str, reranker: Reranker, depth: int) -> Iterator[JudgedLists]:
    """The lists that searches of a collection find, and the BM25 and dense ones fused as OpenSearch does."""
    collection, found = open_collection(location), dict[FirstStage, list[CandidateList]]()
    name, qrels = Path(location).name, collection.qrels("test")
    judged = {qrel.query_id for qrel in qrels}
    for stage in FirstStage:
        found[stage] = []
        for query in collection.queries():
            if query.query_id in judged:
                result = reranker.search(query, stage, depth, RankOptions(model="identity"))
                found[stage] += [CandidateList(query, tuple(item.passage for item in result.ranking.ranked))]
        yield JudgedLists(f"{name}, {stage}", found[stage], qrels, stage, stage is FirstStage.DENSE)
    both = list(fused(found[FirstStage.BM25], found[FirstStage.DENSE], "minmax", depth))
    yield JudgedLists(f"{name}, hybrid-minmax", both, qrels)


def sent_lists(data: Path, depth: int) -> Iterator[JudgedLists]:
    """The lists of request files, and those that are fused of them."""
    for name in (*_BM25, *_NEURAL):
        qrels = list(read_qrels(data / name.partition("/")[0].removesuffix("-first-stages") / "qrels.txt"))
        lists = _read(data / f"{name}.jsonl", depth)
        yield JudgedLists(name, lists, qrels, is_neural=name in _NEURAL)
        for other in _BM25.get(name, ()):
            others = _read(data / f"{other}.jsonl", depth)
            for how in ("rrf", "minmax"):
                both = list(fused(lists, others, how, depth))
                yield JudgedLists(f"{name} with {Path(other).name}, {how}", both, qrels)


def _read(path: Path, depth: int) -> list[CandidateList]:
    return [CandidateList(request.query, request.candidates[:depth]) for request in read_requests(path)]


def fused(
    lists: Sequence[CandidateList], others: Sequence[CandidateList], how: str, depth: int
) -> Iterator[CandidateList]:
    """Fuses the lists of equal queries by reciprocal ranks, or by min-max and mean, OpenSearch's default."""
    others_of = {item.query.query_id: item.candidates for item in others}
    for item in lists:
        both = [item.candidates, others_of.get(item.query.query_id, ())]
        known = {passage.doc_id: passage for some in both for passage in some}
        runs = [{passage.doc_id: passage.score or 0.0 for passage in some} for some in both]
        scores = reciprocal_rank(runs) if how == "rrf" else _min_max_mean(runs)
        ranked = best(scores, depth).items()
        yield CandidateList(item.query, tuple(replace(known[doc_id], score=score) for doc_id, score in ranked))


def _min_max_mean(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    fused: dict[str, float] = {}
    for run in runs:
        lowest, highest = min(run.values(), default=0.0), max(run.values(), default=0.0)
        for doc_id, score in run.items():
            share = (score - lowest) / (highest - lowest) if highest > lowest else 1.0
            fused[doc_id] = fused.get(doc_id, 0.0) + share / len(runs)
    return fused


def measured(judged: JudgedLists, reranker: Reranker, model: str, depth: int) -> Row:
    """Compares a model with the first stage on lists in all their forms."""
    graded = {qrel.query_id for qrel in judged.qrels}
    lists = [item for item in judged.lists if item.candidates and item.query.query_id in graded]
    of_lists = {item.query.query_id for item in lists}
    qrels = [qrel for qrel in judged.qrels if qrel.query_id in of_lists]
    first_stage: Run = {item.query.query_id: by_rank(passage.doc_id for passage in item.candidates) for item in lists}
    runs: dict[str, dict[str, list[str]]] = {"texts": {}}
    usual, neural = RankOptions(model=model), RankOptions(model=model, first_stage_weight=FirstStageKind.NEURAL)
    for query, candidates in ((item.query, item.candidates) for item in lists):
        texts = [Passage(passage.doc_id, passage.text, passage.score) for passage in candidates]
        rankings = {"texts": reranker.rerank(query, texts, usual)}
        if judged.is_neural:
            rankings["neural"] = reranker.rerank(query, texts, neural)
        if judged.stage is not None:
            rankings["search"] = reranker.search(query, judged.stage, depth, usual).ranking
        for form, ranking in rankings.items():
            runs.setdefault(form, {})[query.query_id] = [item.passage.doc_id for item in ranking.ranked]

    def ndcg(run: Run) -> list[float]:
        return measure([nDCG @ 10], qrels, run).values()

    reference = ndcg(first_stage)
    of_forms = {
        form: compare(ndcg({query_id: by_rank(docs) for query_id, docs in run.items()}), reference)
        for form, run in runs.items()
    }
    row = Row(judged.name, **of_forms)
    print(f"{row.name}: {row.texts.reference:.4f} → {_cell(row.texts)}", file=sys.stderr, flush=True)
    return row


def row_of(judged: JudgedLists, reranker: Reranker, model: str, depth: int, rows: Path) -> Row:
    """The row that an earlier call left in the folder `rows`, or a new one, which is kept there."""
    file = rows / f"{judged.name.replace('/', ' ')}.json"
    if file.exists():
        return _ROW.validate_json(file.read_bytes())
    row = measured(judged, reranker, model, depth)
    rows.mkdir(parents=True, exist_ok=True)
    with atomic_file(file) as temporary:
        temporary.write_bytes(_ROW.dump_json(row))
    return row


def measured_lists(data: Path, work: Path, model: str, only: str, depth: int) -> Iterator[Row]:
    """Measures a model on each list whose name contains `only`. An index is built if it is missing."""
    rows = work / f"{model}-{depth}"
    for name in COLLECTIONS:
        if not any(only in f"{name}, {label}" for label in (*FirstStage, "hybrid-minmax")):
            continue
        location, index = name if name == "pydoc" else str(data / name), work / f"{name}-index"
        if not index.exists():
            settings = BuildSettings(encoder_dtype="auto")
            build_index(open_collection(location), index, Encoder(), settings=settings, sparse_encoder=SparseEncoder())
        with Reranker(ServiceConfig(index=index, engine=_ENGINE)) as reranker:
            for judged in searched_lists(location, reranker, depth):
                if only in judged.name:
                    yield row_of(judged, reranker, model, depth, rows)
    with Reranker(ServiceConfig(engine=_ENGINE)) as reranker:
        for judged in sent_lists(data, depth):
            if only in judged.name:
                yield row_of(judged, reranker, model, depth, rows)


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
    work: Annotated[Path, typer.Option(help="Folder for indexes and rows; a stopped call resumes there.")],
    model: Annotated[str, typer.Option(help="A bundled model.")] = "default",
    only: Annotated[str, typer.Option(help="A part of the names of the lists that are measured.")] = "",
    depth: Annotated[int, typer.Option(min=2, max=1000, help="Number of candidates of a list.")] = 100,
) -> None:
    """Measure a model on all lists and print the table."""
    print(as_markdown(list(measured_lists(data, work, model, only, depth))))


if __name__ == "__main__":
    typer.run(main)
