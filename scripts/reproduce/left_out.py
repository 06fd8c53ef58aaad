"""Prints what the fusion's weights are worth on a collection that did not choose them: results.md, "left out".

    python -m scripts.reproduce.left_out --data DATA --work WORK

DATA and WORK are those of `scripts.reproduce.default_table`, which builds the indexes. For each collection, the weights
that are best in the mean of all other collections rank its lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rerank_eval.report import markdown_table
from rerank_eval.statistics import SIGNIFICANT, Comparison, compare
from rerank_training.fusion.judged_lists import judged_list
from rerank_training.fusion.signals import signals_of
from rerank_training.fusion.weights import Values, Weights, ndcg_of_first_stage, ndcg_of_weights
from rerank_training.lists.files import read_lists
from rerank_training.lists.training_list import TrainingList
from rich.console import Console

from rerank.collections import open_collection
from rerank.config import FusionModel
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank.retrieval.index import Index
from rerank.types import FirstStage, FirstStageKind
from scripts.reproduce.default_table import COLLECTIONS, MOST_QUERIES, STAGES, collection_name, index_folder

_SMOOTHING, _FIRST_STAGE, _SPARSE = (0.0, 0.25, 0.5), (0.25, 0.35, 0.5, 0.65, 0.8), (0.4, 0.5, 0.6)
_DEPTH = 100
_MODEL = FusionModel(name="default", ranker="fusion")
_CONSOLE = Console(stderr=True)


class Measured(NamedTuple):
    """The lists of a first stage over a collection.

    Attributes:
        first_stage: (lists,) nDCG@10 in the order of the first stage.
        values: (smoothing, first stage, sparse, lists) nDCG@10 with all weights that are tried.
    """

    collection: str
    stage: str
    kind: FirstStageKind
    first_stage: Values
    values: Values


class Choice(NamedTuple):
    """Places in `_SMOOTHING` and `_SPARSE`, and for each kind of list one in `_FIRST_STAGE`."""

    smoothing: int
    sparse: int
    first_stage: Mapping[FirstStageKind, int]

    def values(self, lists: Measured) -> Values:
        """(lists,) nDCG@10 with the chosen weights."""
        chosen: Values = lists.values[self.smoothing, self.first_stage[lists.kind], self.sparse]
        return chosen

    def __str__(self) -> str:
        first_stage = ", ".join(f"{kind} {_FIRST_STAGE[place]:g}" for kind, place in self.first_stage.items())
        return f"{first_stage}, sparse {_SPARSE[self.sparse]:g}, smoothing {_SMOOTHING[self.smoothing]:g}"


def choose(measured: Sequence[Measured]) -> Choice:
    """The weights with the best mean over kinds of lists, of the means over collections."""
    kinds = list(dict.fromkeys(lists.kind for lists in measured))
    means = {kind: _mean([lists for lists in measured if lists.kind == kind]) for kind in kinds}
    places = product(range(len(_SMOOTHING)), range(len(_SPARSE)))
    smoothing, sparse = max(places, key=lambda at: sum(means[kind][at[0], :, at[1]].max() for kind in kinds))
    return Choice(smoothing, sparse, {kind: int(means[kind][smoothing, :, sparse].argmax()) for kind in kinds})


def _mean(measured: Sequence[Measured]) -> Values:
    """(smoothing, first stage, sparse) in which every collection counts the same."""
    by_collection = [
        np.mean([lists.values.mean(axis=-1) for lists in measured if lists.collection == collection], axis=0)
        for collection in {lists.collection for lists in measured}
    ]
    return np.mean(by_collection, axis=0)


def left_out(measured: Sequence[Measured]) -> Iterator[tuple[Measured, Choice, Comparison]]:
    """The lists with the weights that the other collections choose, compared with their first stage."""
    for lists in measured:
        chosen = choose([other for other in measured if other.collection != lists.collection])
        yield lists, chosen, compare(chosen.values(lists), lists.first_stage)


def measure(data: Path, work: Path) -> Iterator[Measured]:
    """Measures all weights on the searches of the collections, and on DL 2021's BM25."""
    encoder, sparse = Encoder(), SparseEncoder()
    for name in COLLECTIONS:
        collection = open_collection(collection_name(name, data, work))
        grades = grades_by_query(collection.qrels("test"))
        queries = [query for query in collection.queries() if query.query_id in grades][: MOST_QUERIES.get(name)]
        index = Index(index_folder(name, work), encoder, lambda: sparse)
        for stage in STAGES:
            found = (judged_list(index, stage, query, _DEPTH, grades[query.query_id]) for query in queries)
            lists = [item for item in found if item is not None]
            kind = FirstStageKind.LEXICAL if stage is FirstStage.BM25 else FirstStageKind.HYBRID
            # The index has all vectors, so that the service reads the whole list.
            yield _measured(
                name, stage, kind, lists, grades, _MODEL.model_copy(update={"cosine_depth": 0}), encoder, sparse
            )
    grades = grades_by_query(read_qrels(data / "trec-dl-2021" / "qrels.txt"))
    lists = read_lists(data / "trec-dl-2021" / "requests.jsonl", grades=grades)
    yield _measured("trec-dl-2021", "requests", FirstStageKind.LEXICAL, lists, grades, _MODEL, encoder, sparse)


def _measured(
    collection: str,
    stage: str,
    kind: FirstStageKind,
    lists: Sequence[TrainingList],
    grades: Mapping[str, Mapping[str, int]],
    model: FusionModel,
    encoder: Encoder,
    sparse: SparseEncoder,
) -> Measured:
    tried = [Weights(*weights) for weights in product(_FIRST_STAGE, _SPARSE)]
    models = [model.model_copy(update={"smoothing_weight": smoothing}) for smoothing in _SMOOTHING]
    rows = [
        (ndcg_of_first_stage(item), *(value for one in models for value in ndcg_of_weights(item, tried, one)))
        for item in signals_of(lists, encoder, sparse, _CONSOLE)
    ]
    first_stage, *values = np.array(rows).T
    # nDCG within a list takes its best order as ideal; that of a collection takes all judged passages.
    shares = np.array([_ideal_share(item, grades[item.query.query_id]) for item in lists])
    shape = (len(_SMOOTHING), len(_FIRST_STAGE), len(_SPARSE), len(lists))
    return Measured(collection, stage, kind, first_stage * shares, np.reshape(values, shape) * shares)


def _ideal_share(item: TrainingList, grades: Mapping[str, int]) -> float:
    """DCG@10 of the list's best order, divided by that of all judged passages."""
    of_list, of_all = _ideal_dcg(item.relevance), _ideal_dcg(list(grades.values()))
    return of_list / of_all if of_all else 0.0


def _ideal_dcg(relevance: Sequence[float]) -> float:
    best = sorted(relevance, reverse=True)[:10]
    return sum(max(grade, 0) / math.log2(rank + 1) for rank, grade in enumerate(best, 1))


def as_markdown(measured: Sequence[Measured]) -> str:
    """The table, with the number of lists that the weights of the others make worse."""
    found = list(left_out(measured))
    cells = [
        [
            f"{lists.collection}, {lists.stage}",
            str(c.queries),
            f"{c.reference:.4f}",
            f"{c.mean:.4f}",
            f"{c.p:.2g}",
            f"{c.wins}/{c.ties}/{c.losses}",
            str(chosen),
        ]
        for lists, chosen, c in found
    ]
    first_stage, mean = fmean(c.reference for *_, c in found), fmean(c.mean for *_, c in found)
    cells.append(["mean", "", f"{first_stage:.4f}", f"{mean:.4f}", "", "", f"all: {choose(measured)}"])
    head = ["list", "queries", "first stage", "left out", "p", "won/tied/lost", "weights of the others"]
    worse = [c for *_, c in found if c.difference < 0]
    return (
        f"{markdown_table(head, cells)}\n\n"
        f"Worse than its first stage on {len(worse)} of {len(found)} lists, significantly (p < .05, each alone) on "
        f"{sum(c.p < SIGNIFICANT for c in worse)}.\n"
    )


def main(
    data: Annotated[Path, typer.Option(help="Folder with the datasets.")],
    work: Annotated[Path, typer.Option(help="Folder with the indexes of default_table.")],
) -> None:
    """Choose weights on all collections but one, and print what they are worth on that one."""
    print(as_markdown(list(measure(data, work))))


if __name__ == "__main__":
    typer.run(main)
