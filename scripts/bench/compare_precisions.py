"""Comparison of the precisions of a model: how far orders, nDCG@10 and processor time change.

python -m scripts.bench.compare_precisions --requests requests.jsonl --qrels qrels.txt --last 18

One precision ranks all requests after the other, so that only one model is in memory. Of neighbouring pairs in the
order of the first precision, those count that the other one orders alike; Kendall's tau is that of the first 20, the
window of FIRST.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, cast

import torch
import typer
from ir_measures import nDCG
from rerank_eval.measures import measure
from rerank_eval.systems import with_precision

from rerank.commands.progress import show_progress
from rerank.commands.run import console
from rerank.config import Precision, ServiceConfig
from rerank.config.named import config_of_model
from rerank.models.precision import has_vnni
from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.requests import Request, read_requests
from rerank.reranking.blocking import Reranker
from rerank.types import ScoredDoc
from scripts.bench.orders import kendall_tau, neighbours_alike

Orders = dict[str, list[str]]
_TOP = 20


def main(
    requests: Annotated[Path, typer.Option(help="RankLLM request file, JSONL.")],
    qrels: Annotated[Path, typer.Option(help="Judgements.")],
    model: Annotated[str, typer.Option(help="Name of a bundled model, or of a profile with its folder.")] = "default",
    precisions: Annotated[
        str, typer.Option(help="The first one is compared with the others.")
    ] = "float32,bfloat16,int8",
    last: Annotated[int, typer.Option(min=0, help="Only the last requests of the file; 0: all.")] = 0,
) -> None:
    """Print one row per precision."""
    torch.set_num_threads(1)
    names = [cast(Precision, name) for name in precisions.split(",") if name != "int8" or has_vnni()]
    asked, judged = read_requests(requests)[-last:], read_qrels(qrels)
    orders: dict[Precision, Orders] = {}
    seconds: dict[Precision, float] = {}
    for name in names:
        orders[name], seconds[name] = ranked(with_precision(config_of_model(model), name), asked)
    reference = orders[names[0]]
    print("| precision | nDCG@10 | same neighbours of 20 | of all | tau of 20 | same first 10 | CPU s | times |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in names:
        pairs = [(reference[query_id], orders[name][query_id]) for query_id in reference]
        print(
            f"| {name} | {ndcg(orders[name], judged):.4f} "
            f"| {fmean(neighbours_alike(a[:_TOP], b) for a, b in pairs):.4f} "
            f"| {fmean(neighbours_alike(a, b) for a, b in pairs):.4f} "
            f"| {fmean(kendall_tau(a[:_TOP], b) for a, b in pairs):.4f} "
            f"| {fmean(len({*a[:10]} & {*b[:10]}) / len(a[:10]) for a, b in pairs):.4f} "
            f"| {seconds[name] / len(pairs):.3f} | {seconds[names[0]] / seconds[name]:.2f} |"
        )


def ranked(config: ServiceConfig, requests: Sequence[Request]) -> tuple[Orders, float]:
    """The order of each request's candidates by its query's id, and the processor time of all, in seconds."""
    reranker, orders = Reranker(config), Orders()
    start = time.process_time()
    with show_progress(console, "requests") as progress:
        for done, request in enumerate(requests, start=1):
            ranking = reranker.rerank(request.query, request.candidates)
            orders[request.query.query_id] = [item.candidate.passage.doc_id for item in ranking.ranked]
            progress.report("requests", done, len(requests))
    seconds = time.process_time() - start
    reranker.close()
    return orders, seconds


def ndcg(orders: Orders, qrels: list[Qrel]) -> float:
    """nDCG@10 over the judged queries that were asked."""
    run = {query: [ScoredDoc(doc, -float(rank)) for rank, doc in enumerate(docs)] for query, docs in orders.items()}
    return measure((nDCG @ 10,), [qrel for qrel in qrels if qrel.query_id in run], run).mean["nDCG@10"]


if __name__ == "__main__":
    typer.run(main)
