"""`eval-relevance`: measures the relevance of a model's results on judged lists, and fits its curve.

eval-relevance default --requests lists.jsonl --qrels qrels.txt --relevant-from 2
eval-relevance runs/mine/final --index indexes/mine --collection my-corpus --fit --store
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

app = CommandApp()


@dataclass(frozen=True, slots=True, kw_only=True)
class RelevanceSettings:
    """Settings of `eval-relevance`."""

    model: Annotated[
        str, typer.Argument(help="default, pe-rank, the folder of a checkpoint, or with --config the name of a model.")
    ]
    config: Annotated[Path | None, typer.Option(help="YAML file of a service, which has the model.")] = None
    requests: Annotated[
        list[Path], typer.Option(help="RankLLM request file (JSONL): queries with their candidates. Repeatable.")
    ] = field(default_factory=list)
    qrels: Annotated[
        list[Path], typer.Option(help="Judgements in the form of TREC or BEIR, one file for each --requests.")
    ] = field(default_factory=list)
    index: Annotated[
        list[Path], typer.Option(help="Index by `rerank index`, whose first candidates are the lists. Repeatable.")
    ] = field(default_factory=list)
    collection: Annotated[
        list[str], typer.Option(help="pydoc, or a folder in BEIR layout, with the judgements; one for each --index.")
    ] = field(default_factory=list)
    relevant_from: Annotated[
        list[int],
        typer.Option(
            help="Least grade that counts as relevant: one for each --requests, then each --index. Default: 1."
        ),
    ] = field(default_factory=list)
    first_stage: FirstStageOption = FirstStage.HYBRID_RRF
    depth: Annotated[int, typer.Option(min=2, max=1000, help="Number of candidates of each query.")] = 100
    fit: Annotated[
        bool,
        typer.Option(
            "--fit",
            help="Fit the curve, and print it for service.yaml. Every second query is measured with a curve of the "
            "others; the printed one is of all queries.",
        ),
    ] = False
    store: Annotated[
        bool,
        typer.Option("--store", help="With --fit: store the curve in the manifest of the model's checkpoint, too."),
    ] = False


@app.command(example=example_in(__doc__))
@flags(RelevanceSettings)
def evaluate(settings: RelevanceSettings) -> None:
    """Measure whether the relevance of results is a probability, and fit it to judgements."""
    from rerank_eval.relevance_study import run_study  # imports torch, which --help does not need

    run_study(settings)


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
