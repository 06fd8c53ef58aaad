"""Measures what it costs when a client sends a list in several calls and merges the replies by their scores.

    python -m scripts.reproduce.split_lists --requests requests.jsonl --qrels qrels.txt --model default
    python -m scripts.reproduce.split_lists --requests results/cranfield/run.trec --qrels cranfield --model pe-rank

Calls hold neighbours of the first stage's list, texts alone, as Weaviate, Milvus and RAGFlow send them. The scores are
those of the HTTP forms: the relevance where the model gives one, and with "relative" the model's own score.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from ir_measures import nDCG
from rerank_eval.candidates import candidates_of_run
from rerank_eval.datasets import open_dataset
from rerank_eval.measures import MAIN_MEASURE, measure
from rerank_eval.overlap import candidate_ids
from rerank_eval.statistics import compare

from rerank.collections import is_collection
from rerank.commands.run import run
from rerank.config.named import config_of_model
from rerank.ports.http.dialects.scores import relevance_scores
from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.requests import Request, read_requests
from rerank.reranking.blocking import Reranker
from rerank.types import CandidateSource, RankOptions, ScoredDoc

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    requests: Annotated[Path, typer.Option(help="RankLLM request file, or a TREC run.")],
    qrels: Annotated[str, typer.Option(help="Judgements; for a run, the collection.")],
    model: Annotated[str, typer.Option(help="Name of a bundled model.")] = "default",
    sizes: Annotated[str, typer.Option(help="Passages of a call.")] = "25,32,8",
    depth: Annotated[int, typer.Option(help="Candidates of a query.")] = 100,
    every: Annotated[int, typer.Option(help="Every n-th query only.")] = 1,
) -> None:
    """Print a row for each number of passages a call, and the difference from the whole list."""
    lists, judgements = _read(requests, qrels, depth)
    lists = lists[::every]
    runs: dict[tuple[int, str], dict[str, list[ScoredDoc]]] = {}
    with Reranker(config_of_model(model)) as reranker:
        for item in lists:
            for size in (depth, *map(int, sizes.split(","))):
                for name, merged in _merged(reranker, item, size).items():
                    runs.setdefault((size, name), {})[item.query.query_id] = merged
    asked = {item.query.query_id for item in lists}
    judged = [qrel for qrel in judgements if qrel.query_id in asked]
    values = {key: measure([nDCG @ 10], judged, found).values() for key, found in runs.items()}
    print(f"{model}, {len(lists)} queries of {requests}: {MAIN_MEASURE} by the merged score of the reply")
    for (size, name), found in values.items():
        change = compare(found, values[depth, "score"])
        interval = f"{change.interval[0]:+.4f} to {change.interval[1]:+.4f}"
        print(f"{size:4} {name:8} {fmean(found):.4f} {change.difference:+.4f} ({interval}), p = {change.t_p:.4f}")


def _merged(reranker: Reranker, request: Request, size: int) -> dict[str, list[ScoredDoc]]:
    """The list in calls of this size, merged by each kind of score; equal scores keep the first stage's order."""
    scores: dict[str, dict[str, float]] = {"score": {}, "relative": {}}
    for start in range(0, len(request.candidates), size):
        part = [
            CandidateSource(candidate.doc_id, candidate.text) for candidate in request.candidates[start : start + size]
        ]
        ranking = reranker.rerank(request.query, part, RankOptions(ordered=False))
        for name, of_name in scores.items():
            replied = relevance_scores(ranking, len(part), is_relative=name == "relative")
            doc_ids = [item.candidate.passage.doc_id for item in ranking.ranked]
            of_name |= zip(doc_ids, replied, strict=True)
    return {
        name: _run([candidate.doc_id for candidate in request.candidates], of_name) for name, of_name in scores.items()
    }


def _run(doc_ids: list[str], scores: dict[str, float]) -> list[ScoredDoc]:
    best_first = sorted(doc_ids, key=lambda doc_id: -scores[doc_id])
    return [ScoredDoc(doc_id, float(-rank)) for rank, doc_id in enumerate(best_first)]


def _read(path: Path, judgements: str, depth: int) -> tuple[list[Request], list[Qrel]]:
    """The lists of judged queries, and the judgements."""
    if is_collection(judgements):
        dataset = open_dataset(judgements)
        lists, qrels = candidates_of_run(path, dataset, depth)[0], list(dataset.qrels)
    else:
        lists = [Request(request.query, request.candidates[:depth]) for request in read_requests(path)]
        qrels = list(read_qrels(Path(judgements), candidate_ids(lists)))
    judged = {qrel.query_id for qrel in qrels}
    return [item for item in lists if item.query.query_id in judged], qrels


if __name__ == "__main__":
    run(app)
