"""Measures long documents: nDCG@10 and cost of their parts (`max_chunks_per_doc`) against their beginning alone.

python -m scripts.reproduce.long_documents --requests requests.jsonl --qrels qrels.txt --passages 5

A document is the passage of a candidate, at a random place among passages of other requests. It has its judgement.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Annotated

import ir_measures
import typer
from ir_measures import nDCG
from scipy.stats import ttest_rel

from rerank import RankOptions, Reranker
from rerank.readers.qrels import read_qrels
from rerank.readers.requests import Request, read_requests


@dataclass(frozen=True, slots=True)
class Row:
    """The measurements of one number of chunks, one per request."""

    ndcg: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def main(
    requests: Annotated[Path, typer.Option(help="RankLLM request JSONL, with scores.")],
    qrels: Annotated[Path, typer.Option(help="Judgements, in the form of TREC or BEIR.")],
    passages: Annotated[int, typer.Option(min=1, help="Passages per document.")] = 5,
    chunks: Annotated[str, typer.Option(help="Values of max_chunks_per_doc, with commas.")] = "0,10",
    model: Annotated[str, typer.Option(help="A model, as `rerank.Reranker` takes it.")] = "default",
    depth: Annotated[int, typer.Option(min=2, help="Number of first candidates of each list.")] = 100,
    limit: Annotated[int, typer.Option(min=0, help="Number of requests, a random sample; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the documents.")] = 0,
) -> None:
    """Print a line for each request, then a table in Markdown."""
    judgements = read_qrels(qrels)
    judged = {qrel.query_id for qrel in judgements if qrel.relevance > 0}
    asked = [request for request in read_requests(requests) if request.query.query_id in judged]
    rows = {int(each): Row() for each in chunks.split(",")}
    with Reranker(model) as reranker:
        reranker.rerank("warm", ["up", "once"], RankOptions())
        for request in long_documents(asked, passages, depth, limit, seed):
            query_id = request.query.query_id
            grades = [qrel for qrel in judgements if qrel.query_id == query_id]
            for most, row in rows.items():
                start_s = time.process_time()
                ranking = reranker.rerank(request.query, request.candidates, RankOptions(max_chunks_per_doc=most))
                row.seconds.append(time.process_time() - start_s)
                row.tokens.append(ranking.trace.tokens)
                run = {query_id: {item.candidate.passage.doc_id: item.score for item in ranking.ranked}}
                row.ndcg.append(ir_measures.calc_aggregate([nDCG @ 10], grades, run)[nDCG @ 10])
            print(query_id, *(f"{row.ndcg[-1]:.4f}" for row in rows.values()), flush=True)
    print_table(rows)


def long_documents(requests: Sequence[Request], passages: int, depth: int, limit: int, seed: int) -> list[Request]:
    """The requests, with the first `depth` candidates, each in a document of so many passages."""
    rng = Random(seed)
    sample = rng.sample(requests, limit) if limit else requests
    return [
        replace(
            request,
            candidates=tuple(
                replace(
                    candidate, text=_joined(candidate.text or "", _others(requests, request, passages - 1, rng), rng)
                )
                for candidate in request.candidates[:depth]
            ),
        )
        for request in sample
    ]


def _others(requests: Sequence[Request], request: Request, count: int, rng: Random) -> list[str]:
    """Passages of other requests."""
    others = [each for each in requests if each.query.query_id != request.query.query_id]
    return [rng.choice(rng.choice(others).candidates).text or "" for _ in range(count)]


def _joined(text: str, others: list[str], rng: Random) -> str:
    place = rng.randrange(len(others) + 1)
    return " ".join([*others[:place], text, *others[place:]])


def print_table(rows: dict[int, Row]) -> None:
    """nDCG@10 with the p value of a paired t-test, tokens and time as ratios to the first row."""
    first = next(iter(rows.values()))
    print("| max_chunks_per_doc | nDCG@10 | p | tokens of the models | processor time |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for most, row in rows.items():
        p = f"{ttest_rel(row.ndcg, first.ndcg).pvalue:.4f}" if row is not first and len(row.ndcg) > 1 else ""
        ratio = sum(row.seconds) / sum(first.seconds)
        print(f"| {most} | {fmean(row.ndcg):.4f} | {p} | {fmean(row.tokens):.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    typer.run(main)
