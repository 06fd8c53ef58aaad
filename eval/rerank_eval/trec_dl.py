"""`eval-trec-dl`: reranks the candidates of request files or TREC runs and measures the result.

eval-trec-dl --requests requests.jsonl --qrels qrels.txt --ranker identity --ranker pe-rank --out results/pe-rank
eval-trec-dl --requests run.trec --collection my-corpus --ranker pe-rank --out results/my-run
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands.app import CommandApp, example_in
from rerank.commands.flags import flags
from rerank.commands.run import run
from rerank_eval.settings import EvaluationSettings

app = CommandApp()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrecDLSettings(EvaluationSettings):
    """Settings of `eval-trec-dl`; each field is a flag."""

    requests: Annotated[
        list[Path],
        typer.Option(
            help="RankLLM request file (JSONL): queries with their candidates. With --collection, a TREC run. "
            "Repeatable, once for each dataset."
        ),
    ]
    qrels: Annotated[
        list[Path],
        typer.Option(
            help="Judgements in the form of TREC or BEIR, one file for each --requests; not needed with --collection."
        ),
    ] = field(default_factory=list)
    collection: Annotated[
        list[str],
        typer.Option(
            help="Collection with the passages of a TREC run: a folder in BEIR layout, pydoc, or a name of "
            "ir_datasets. One for each --requests."
        ),
    ] = field(default_factory=list)
    split: Annotated[
        str, typer.Option(help="Split of a --collection in BEIR layout: its judgements are qrels/SPLIT.tsv.")
    ] = "test"
    depth: Annotated[int, typer.Option(min=0, help="Number of candidates of each query to rerank; 0: all.")] = 0
    repair_texts: Annotated[
        bool,
        typer.Option(
            "--repair-texts",
            help="Repair the encoding of the candidates' texts with ftfy and cut them at 300 words, as RankLLM does.",
        ),
    ] = False
    orders: Annotated[
        str,
        typer.Option(
            help="Orders in which systems receive the candidates, to show how much a result depends on the first "
            "stage's order: original,reversed,shuffled:COUNT,unordered. unordered sends them as an unordered list."
        ),
    ] = "original"
    index: Annotated[
        Path | None,
        typer.Option(help="Index of the only --collection, from which models read the candidates' vectors."),
    ] = None
    without_scores: Annotated[
        bool, typer.Option("--without-scores", help="Send the candidates without the first stage's scores.")
    ] = False


@app.command(example=example_in(__doc__))
@flags(TrecDLSettings)
def evaluate(settings: TrecDLSettings) -> None:
    """Rerank the candidates of request files or TREC runs, and measure nDCG@10 and other measures."""
    from rerank_eval.reranking import evaluate_reranking  # imports scipy and grpc, which --help does not need

    evaluate_reranking(settings)


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
