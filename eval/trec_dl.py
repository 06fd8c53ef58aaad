"""`eval-trec-dl`: reranks the candidates of a request file and measures the result.

eval-trec-dl --requests requests.jsonl --qrels qrels.txt --ranker pe-rank --out results/pe-rank
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from eval.data import Request, read_requests, read_trec_qrels
from eval.measures import TREC_DL, measure
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
from rerank.cli import Stride, WindowSize, console, run, strategy_message
from rerank.client import RerankClient
from rerank.types import ScoredDoc
from rerank.v1 import rerank_pb2 as pb

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def evaluate(
    requests: Annotated[Path, typer.Option(help="RankLLM request JSONL: queries with their candidates.")],
    qrels: Annotated[Path, typer.Option(help="Judgements in TREC form.")],
    out: OutOption,
    ranker: RankerOption = "pe-rank",
    model: ModelOption = "",
    template: TemplateOption = "",
    target: TargetOption = "",
    strategy: StrategyOption = None,
    window_size: WindowSize = 0,
    stride: Stride = 0,
) -> None:
    """Rerank the candidates of a request file and measure nDCG@10 and the like."""
    settings = {name: str(value) for name, value in locals().items()}
    judged, asked = read_trec_qrels(qrels), read_requests(requests)
    schedule = strategy_message(strategy, window_size, stride)
    with open_system(ranker, model, template, target) as (client, name):
        todo = track(asked, "reranking", console=console, disable=not console.is_terminal)
        ranked = {request.query.query_id: _rerank(client, name, schedule, request) for request in todo}
    report = measure(TREC_DL, judged, ranked)
    write(out, ranked, report, settings)
    print_table(console, f"{len(asked)} queries of {requests}, {len(report.per_query)} judged", {ranker: report})


def _rerank(client: RerankClient, model: str, schedule: pb.Strategy, request: Request) -> list[ScoredDoc]:
    candidates = [pb.Candidate(doc_id=c.doc_id, text=c.text, first_stage_score=c.score) for c in request.candidates]
    return scored_docs(client.rerank(request.query.text, candidates, model=model, strategy=schedule).results)


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
