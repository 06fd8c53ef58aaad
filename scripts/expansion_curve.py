"""Curve of document expansion: dense retrieval of an index after `rerank expand` with each of several settings.

    python scripts/expansion_curve.py --collection pydoc --index indexes/pydoc
    python scripts/expansion_curve.py --collection CRANFIELD --index indexes/cranfield --neighbours 5 --weight 0.8

Prints a Markdown row per setting, with the p of a paired t-test against the index as it is. The defaults of `rerank
expand` were chosen by the rows of pydoc.
"""

import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rerank_eval.datasets import open_dataset
from rerank_training.retriever.evaluation import Change, changes, evaluate_index

from rerank.collections.requests import Qrel
from rerank.models.encoder import Encoder
from rerank.retrieval.expansion import expand_index
from rerank.retrieval.index import Expansion, read_manifest
from rerank.types import FirstStage


def main(
    collection: Annotated[str, typer.Option(help="Collection of the index: pydoc or a folder in BEIR layout.")],
    index: Annotated[Path, typer.Option(help="Index of the collection.")],
    first_stage: Annotated[list[FirstStage] | None, typer.Option(help="Searches for neighbours.")] = None,
    neighbours: Annotated[list[int] | None, typer.Option(help="Numbers of neighbours; default: 3, 5, 10.")] = None,
    weight: Annotated[list[float] | None, typer.Option(help="Weights; default: 0.3, 0.5, 0.8, 1.")] = None,
) -> None:
    """Expand the index with every combination of the settings and measure each."""
    dataset, encoder = open_dataset(collection), Encoder(read_manifest(index).encoder.name, "cpu")
    queries = list(dataset.queries.values())
    qrels = [Qrel(qrel.query_id, qrel.doc_id, qrel.relevance) for qrel in dataset.qrels]
    before = evaluate_index(index, "cpu", queries, qrels)
    grid = product(
        first_stage or [FirstStage.DENSE, FirstStage.HYBRID_Z_SCORE],
        neighbours or [3, 5, 10],
        weight or [0.3, 0.5, 0.8, 1.0],
    )
    print("| neighbours by | neighbours | weight | R@100 | p | nDCG@10 | p |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print(_row("none", "–", "–", list(changes(before, before).values())), flush=True)
    for stage, n, w in grid:
        with tempfile.TemporaryDirectory() as folder:
            expanded = Path(folder) / "index"
            expand_index(index, expanded, encoder, Expansion(neighbours=n, weight=w, first_stage=stage))
            after = evaluate_index(expanded, "cpu", queries, qrels)
        print(_row(str(stage), str(n), f"{w:g}", list(changes(before, after).values())), flush=True)


def _row(stage: str, neighbours: str, weight: str, measured: Sequence[Change]) -> str:
    cells = [cell for change in measured for cell in (f"{change.after:.4f}", f"{change.p:.2g}")]
    return f"| {' | '.join([stage, neighbours, weight, *cells])} |"


if __name__ == "__main__":
    typer.run(main)
