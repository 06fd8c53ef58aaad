"""Curve of the interpolation weight: nDCG@10 of PE-Rank and of its zero-initialised start with each weight.

    python scripts/interpolation_curve.py --requests requests.jsonl --qrels qrels.txt
    python scripts/interpolation_curve.py --collection pydoc --index indexes/pydoc --first-stage hybrid-rrf

A list is ranked once, in one window without interpolation; its scores are then interpolated with every weight. Prints a
Markdown row per model. The default weight in `rerank.config` was chosen by these rows of TREC DL 2021 and pydoc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from ir_measures import nDCG
from rerank_eval.datasets import open_dataset
from rerank_eval.measures import MAIN_MEASURE, measure

from rerank.commands.options import FirstStageOption
from rerank.commands.run import run
from rerank.config import PERankModel, ServiceConfig
from rerank.engine.scores import candidate_scores, interpolate
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import read_qrels
from rerank.readers.requests import read_requests
from rerank.registry import zero_init_checkpoint
from rerank.reranker import Reranker
from rerank.types import FirstStage, Ranking, RankOptions, ScoredDoc, WindowRanking

WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 1.0)
DEPTH = 100
MODELS = ("pe-rank", "zero-initialised")

app = typer.Typer(add_completion=False)


@app.command()
def curve(
    requests: Annotated[Path | None, typer.Option(help="RankLLM request file (JSONL).")] = None,
    qrels: Annotated[Path | None, typer.Option(help="Judgements of the requests in TREC form.")] = None,
    collection: Annotated[str, typer.Option(help="Collection of the index: pydoc or a folder in BEIR layout.")] = "",
    index: Annotated[Path | None, typer.Option(help="Index of the collection.")] = None,
    first_stage: FirstStageOption = FirstStage.HYBRID_RRF,
) -> None:
    """Rank every list once and print the curve of each model."""
    if (
        (requests is None) != (qrels is None)
        or (index is None) == (requests is None)
        or bool(collection) != bool(index)
    ):
        raise ConfigError("give either --requests and --qrels, or --collection and --index")
    zero_init = PERankModel(name=MODELS[1], ranker="pe-rank", path=zero_init_checkpoint(Encoder()))
    models = PERankModel(name=MODELS[0], ranker="pe-rank"), zero_init
    judgements = read_qrels(qrels) if qrels else open_dataset(collection).qrels
    print(f"| model | {' | '.join(f'{weight:g}' for weight in WEIGHTS)} |")
    print(f"| --- | {' | '.join('---:' for _ in WEIGHTS)} |")
    with Reranker(ServiceConfig(index=index, models=models)) as reranker:
        for model in MODELS:
            options = RankOptions(model, strategy="single", window_size=DEPTH, interpolation=0.0)
            if requests:
                rankings = dict(_reranked(reranker, requests, options))
            else:
                rankings = dict(_searched(reranker, collection, first_stage, options))
            values = (
                measure([nDCG @ 10], judgements, _interpolated(rankings, weight)).mean[MAIN_MEASURE]
                for weight in WEIGHTS
            )
            print(f"| {model} | {' | '.join(f'{value:.4f}' for value in values)} |", flush=True)


def _reranked(reranker: Reranker, path: Path, options: RankOptions) -> Iterator[tuple[str, Ranking]]:
    for request in read_requests(path):
        yield request.query.query_id, reranker.rerank(request.query, request.candidates[:DEPTH], options)


def _searched(
    reranker: Reranker, collection: str, first_stage: FirstStage, options: RankOptions
) -> Iterator[tuple[str, Ranking]]:
    for query_id, query in open_dataset(collection).queries.items():
        yield query_id, reranker.search(query, first_stage, DEPTH, options).ranking


def _interpolated(rankings: Mapping[str, Ranking], weight: float) -> dict[str, Sequence[ScoredDoc]]:
    """The run of all queries, each list in its interpolated order."""
    return {query_id: _in_order(ranking, weight) for query_id, ranking in rankings.items()}


def _in_order(ranking: Ranking, weight: float) -> list[ScoredDoc]:
    in_first_stage_order = sorted(ranking.ranked, key=lambda item: item.position)
    scores, _ = candidate_scores([item.candidate for item in in_first_stage_order])
    window = interpolate(WindowRanking(tuple(item.score for item in in_first_stage_order)), scores, weight)
    ranked = [in_first_stage_order[place].candidate.passage.doc_id for place in window.permutation]
    return [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(ranked)]


if __name__ == "__main__":
    run(app)
