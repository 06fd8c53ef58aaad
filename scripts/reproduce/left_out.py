"""Prints what the fusion's numbers are worth on a collection that did not choose them: results.md, "left out".

    python -m scripts.reproduce.left_out --data DATA --work WORK

DATA and WORK are as in `scripts.reproduce.default_table`. For each collection, the weight of the words and the one of
the first stage beyond them are chosen on all other collections: the best mean of those that harm no list of them, each
collection counting the same. DL 2019 chooses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rerank_eval.report import markdown_table
from rerank_eval.statistics import SIGNIFICANT, Comparison, compare
from rerank_training.fusion.weights import SignalList, Values, served_scores, signals_of
from rerank_training.lists.training_list import TrainingList
from rich.console import Console

from rerank.config import FusionModel
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.types import FirstStageKind
from scripts.reproduce.default_table import (
    COLLECTIONS,
    HARM,
    JudgedLists,
    ndcg_at_10,
    searched_lists,
    sent_lists,
    service_of,
)

_DEPTH = 100
_CONSOLE = Console(stderr=True)
#: (lexical_weight, beyond_words_weight) that are tried.
TRIED = tuple(product((0.3, 0.4, 0.5, 0.6), (0.75, 1.25, 1.75)))


class Measured(NamedTuple):
    """The lists of a first stage over a collection.

    Attributes:
        first_stage: (lists,) nDCG@10 in the order of the first stage.
        values: (TRIED, lists) nDCG@10 with all numbers that are tried.
    """

    collection: str
    name: str
    first_stage: Values
    values: Values

    @property
    def gains(self) -> Values:
        """(TRIED,) mean gains."""
        return np.asarray((self.values - self.first_stage).mean(axis=1))


def choose(measured: Sequence[Measured]) -> int:
    """The place in TRIED with the best mean over collections among those that harm no list; if all do, among all."""
    worst = np.min([lists.gains for lists in measured], axis=0)
    by_collection = [
        np.mean([lists.gains for lists in measured if lists.collection == name], axis=0)
        for name in {lists.collection for lists in measured}
    ]
    means = np.mean(by_collection, axis=0)
    harmless = worst >= -HARM
    return int(np.where(harmless, means, -np.inf).argmax() if harmless.any() else means.argmax())


def left_out(measured: Sequence[Measured]) -> Iterator[tuple[Measured, int, Comparison]]:
    """The lists with the numbers that the other collections choose, compared with their first stage."""
    for lists in measured:
        chosen = choose([other for other in measured if other.collection != lists.collection])
        yield lists, chosen, compare(lists.values[chosen], lists.first_stage)


async def measure(data: Path, work: Path) -> list[Measured]:
    """Measures all numbers on the lists of the collections and of DL 2021, as texts with scores."""
    encoder, sparse = Encoder(), SparseEncoder(cache_bytes=1 << 30)
    measured = []
    for name in COLLECTIONS:
        async with service_of(name, data, work) as reranker:
            for judged in await searched_lists(name, reranker, data, work, _DEPTH):
                measured.append(_measured(name, judged, encoder, sparse))
    for judged in sent_lists(data, _DEPTH):
        if judged.name.startswith("trec-dl-2021"):
            measured.append(_measured("trec-dl-2021", judged, encoder, sparse))
    return measured


def _measured(collection: str, judged: JudgedLists, encoder: Encoder, sparse: SparseEncoder) -> Measured:
    lists = [
        TrainingList(query, tuple(passages), (0.0,) * len(passages), tuple(p.score or 0.0 for p in passages))
        for query, passages in judged.lists
    ]
    models = [
        FusionModel(name="default", ranker="fusion", lexical_weight=lexical, beyond_words_weight=beyond)
        for lexical, beyond in TRIED
    ]
    rows = []
    for item, found in zip(lists, signals_of(lists, encoder, sparse, _CONSOLE), strict=True):
        grades = judged.grades[item.query.query_id]
        rows.append([_ndcg(item, None, grades, models[0]), *(_ndcg(item, found, grades, model) for model in models)])
    first_stage, *values = np.array(rows).T
    return Measured(collection, judged.name, first_stage, np.array(values))


def _ndcg(item: TrainingList, found: SignalList | None, grades: Mapping[str, int], model: FusionModel) -> float:
    """nDCG@10 with these numbers; without signals, the first stage's."""
    scores = np.zeros(len(item.passages)) if found is None else served_scores(found, model, FirstStageKind.AUTO)
    order = np.argsort(-scores, kind="stable")
    return ndcg_at_10([item.passages[place].doc_id for place in order], grades)


def as_markdown(measured: Sequence[Measured]) -> str:
    """The table, with the number of lists that the numbers of the others make worse."""
    found = list(left_out(measured))
    cells = [
        [
            lists.name,
            str(c.queries),
            f"{c.reference:.4f}",
            f"{c.mean:.4f} ({c.difference:+.4f}, p {c.p:.2g}, {c.wins}/{c.ties}/{c.losses})",
            _as_text(chosen),
        ]
        for lists, chosen, c in found
    ]
    first_stage, mean = fmean(c.reference for *_, c in found), fmean(c.mean for *_, c in found)
    cells.append(["mean", "", f"{first_stage:.4f}", f"{mean:.4f}", f"all: {_as_text(choose(measured))}"])
    head = ["list", "queries", "first stage", "left out", "words, beyond them"]
    worse = [c for *_, c in found if c.difference < 0]
    return (
        f"{markdown_table(head, cells)}\n\n"
        f"Worse by more than {HARM:g} on {sum(c.difference < -HARM for c in worse)} of {len(found)} lists, "
        f"significantly (p < .05, each alone) on {sum(c.p < SIGNIFICANT for c in worse)}.\n"
    )


def _as_text(place: int) -> str:
    lexical, beyond = TRIED[place]
    return f"{lexical:g}, {beyond:g}"


def main(
    data: Annotated[Path, typer.Option(help="Folder with the datasets.")],
    work: Annotated[Path, typer.Option(help="Folder with the indexes of default_table.")],
) -> None:
    """Choose the numbers on all collections but one, and print what they are worth on that one."""
    print(as_markdown(asyncio.run(measure(data, work))))


if __name__ == "__main__":
    typer.run(main)
