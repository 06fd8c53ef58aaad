"""`eval-beir`: retrieves and reranks for the queries of a collection and measures the result.

rerank index --collection my-corpus --out indexes/my-corpus
eval-beir --collection my-corpus --index indexes/my-corpus --ranker identity --ranker pe-rank --out results/pe-rank
eval-beir --collection my-corpus --run run.trec --ranker first --out results/first
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands.app import CommandApp, example_in
from rerank.commands.flags import flags
from rerank.commands.options import FirstStageOption
from rerank.commands.run import run
from rerank.types import FirstStage
from rerank_eval.settings import EvaluationSettings

app = CommandApp()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeirSettings(EvaluationSettings):
    """Settings of `eval-beir`; each field is a flag."""

    collection: Annotated[
        list[str],
        typer.Option(
            help="Folder in BEIR layout (corpus.jsonl, queries.jsonl, qrels/), pydoc, or a name of ir_datasets. "
            "Repeatable."
        ),
    ]
    index: Annotated[
        list[Path],
        typer.Option(help="Index of the collection by `rerank index`, one for each; not needed with --target."),
    ] = field(default_factory=list)
    run_file: Annotated[
        list[Path],
        typer.Option("--run", help="TREC run with the candidates, one for each collection, instead of --index."),
    ] = field(default_factory=list)
    prebuilt: Annotated[
        list[str],
        typer.Option(
            help="Name of a prebuilt index of Pyserini for BM25, one for each collection, instead of --index."
        ),
    ] = field(default_factory=list)
    first_stage: FirstStageOption = FirstStage.HYBRID_RRF
    depth: Annotated[int, typer.Option(min=1, help="Number of candidates that the first stage retrieves.")] = 100
    split: Annotated[
        str, typer.Option(help="Split of a collection in BEIR layout: its judgements are qrels/SPLIT.tsv.")
    ] = "test"
    feedback: Annotated[
        bool,
        typer.Option(
            "--feedback",
            help="Evaluate relevance feedback too: served systems search a second time, and dense retrieval is "
            "measured before and after the query vectors follow each ranking.",
        ),
    ] = False


@app.command(example=example_in(__doc__))
@flags(BeirSettings)
def evaluate(settings: BeirSettings) -> None:
    """Retrieve and rerank, and measure nDCG@10 and other measures."""
    from rerank_eval.search import evaluate_search  # imports scipy and grpc, which --help does not need

    evaluate_search(settings)


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
