"""`eval-beir`: retrieves and reranks over an index of a collection in BEIR layout and measures the result.

rerank index --collection BEIR_DIR --out index
eval-beir --collection BEIR_DIR --index index --first-stage hybrid-rrf --ranker pe-rank --out results/hybrid-pe-rank
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from eval.data import read_beir_qrels, read_beir_queries
from eval.measures import BEIR, measure
from eval.output import print_table, write
from eval.systems import (
    ModelOption,
    OutOption,
    RankerOption,
    StrategyOption,
    TargetOption,
    TemplateOption,
    open_system,
    scored_docs,
)
from rerank.cli import FirstStageName, Stride, WindowSize, console, run, strategy_message

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def evaluate(
    collection: Annotated[Path, typer.Option(help="Folder with corpus.jsonl, queries.jsonl and qrels/.")],
    index: Annotated[Path, typer.Option(help="What `rerank index` made of it; not needed with --target.")],
    out: OutOption,
    first_stage: Annotated[FirstStageName, typer.Option(help="The retriever.")] = FirstStageName.HYBRID_RRF,
    depth: Annotated[int, typer.Option(help="Candidates that the first stage hands over.")] = 100,
    split: Annotated[str, typer.Option(help="The judgements: qrels/SPLIT.tsv.")] = "test",
    ranker: RankerOption = "pe-rank",
    model: ModelOption = "",
    template: TemplateOption = "",
    target: TargetOption = "",
    strategy: StrategyOption = None,
    window_size: WindowSize = 0,
    stride: Stride = 0,
) -> None:
    """Retrieve, rerank and measure nDCG@10 and the like."""
    settings = {name: str(value) for name, value in locals().items()}
    judged, asked = read_beir_qrels(collection, split), read_beir_queries(collection)
    judged_ids = {qrel.query_id for qrel in judged}
    ranked = {}
    with open_system(ranker, model, template, target, index) as (client, name):
        todo = [query for query in asked if query.query_id in judged_ids]
        for query in track(todo, "searching", console=console, disable=not console.is_terminal):
            reply = client.search(
                query.text,
                first_stage=f"FIRST_STAGE_{first_stage.name}",
                depth=depth,
                model=name,
                strategy=strategy_message(strategy, window_size, stride),
            )
            ranked[query.query_id] = scored_docs(reply.results)
    report = measure(BEIR, judged, ranked)
    write(out, ranked, report, settings)
    print_table(console, f"{len(report.per_query)} queries of {collection.name}", {f"{first_stage} > {ranker}": report})


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
