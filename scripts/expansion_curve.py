"""Curve of document expansion: retrieval with an index after `rerank expand` with each of several settings.

    python scripts/expansion_curve.py --collection pydoc --index indexes/pydoc
    python scripts/expansion_curve.py --collection CRANFIELD --index indexes/cranfield --neighbours 5 --weight 0.8 \
        --search dense --search hybrid-rrf

Prints a Markdown row per setting, with the p of a paired t-test against the index as it is. The defaults of `rerank
expand` were chosen by the rows of pydoc.
"""

import tempfile
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from ir_measures import R, nDCG
from rerank_eval.datasets import Dataset, open_dataset
from rerank_eval.measures import MetricValues, measure
from rerank_eval.statistics import paired_differences, t_test

from rerank.models.encoder import Encoder
from rerank.retrieval.expansion import expand_index
from rerank.retrieval.index import Expansion, Index, read_manifest
from rerank.types import FirstStage, ScoredDoc

_MEASURES = (R @ 100, nDCG @ 10)
_DEPTH = 100


def main(
    collection: Annotated[str, typer.Option(help="Collection of the index: pydoc or a folder in BEIR layout.")],
    index: Annotated[Path, typer.Option(help="Index of the collection.")],
    first_stage: Annotated[list[FirstStage] | None, typer.Option(help="Searches for neighbours.")] = None,
    neighbours: Annotated[list[int] | None, typer.Option(help="Numbers of neighbours; default: 3, 5, 10.")] = None,
    weight: Annotated[list[float] | None, typer.Option(help="Weights; default: 0.3, 0.5, 0.8, 1.")] = None,
    search: Annotated[list[FirstStage] | None, typer.Option(help="Searches to measure; default: dense.")] = None,
) -> None:
    """Expand the index with every combination of the settings and measure each."""
    dataset, encoder = open_dataset(collection), Encoder(read_manifest(index).encoder.name, "cpu")
    searches = search or [FirstStage.DENSE]
    before = {name: _measured(Index(index, encoder), name, dataset) for name in searches}
    print("| search | neighbours by | neighbours | weight | R@100 | p | nDCG@10 | p |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in searches:
        print(_row([str(name), "none", "–", "–"], before[name], before[name]), flush=True)
    stages = first_stage or [FirstStage.DENSE, FirstStage.HYBRID_Z_SCORE]
    for stage, n, w in product(stages, neighbours or [3, 5, 10], weight or [0.3, 0.5, 0.8, 1.0]):
        with tempfile.TemporaryDirectory() as folder:
            expanded = Path(folder) / "index"
            expand_index(index, expanded, encoder, Expansion(neighbours=n, weight=w, first_stage=stage))
            opened = Index(expanded, encoder)
            for name in searches:
                cells = [str(name), str(stage), str(n), f"{w:g}"]
                print(_row(cells, before[name], _measured(opened, name, dataset)), flush=True)


def _measured(index: Index, search: FirstStage, dataset: Dataset) -> MetricValues:
    results = index.search(search, list(dataset.queries.values()), _DEPTH)
    # Ranks, because scores of reciprocal rank fusion are often equal.
    ranked = [[ScoredDoc(doc.doc_id, -float(rank)) for rank, doc in enumerate(docs)] for docs in results]
    return measure(_MEASURES, dataset.qrels, dict(zip(dataset.queries, ranked, strict=True)))


def _row(cells: list[str], before: MetricValues, after: MetricValues) -> str:
    for name in map(str, _MEASURES):
        p = t_test(paired_differences(after.values(name), before.values(name)))
        cells += [f"{after.mean[name]:.4f}", f"{p:.2g}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    typer.run(main)
