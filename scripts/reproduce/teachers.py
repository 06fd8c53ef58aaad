"""Prints a table of teachers: nDCG@10 of cosine, query likelihood and their weighted sums over the lists of requests.

python -m scripts.reproduce.teachers --requests requests.jsonl --qrels qrels.txt --config wordings.yaml --kept kept

Each model of wordings.yaml with `ranker: query-likelihood` is a wording. Its likelihoods are kept in the folder, so
that a killed call goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import ir_measures
import typer
from ir_measures import nDCG
from rerank_training.lists.encoding import encode_texts
from rerank_training.lists.likelihoods import open_likelihoods
from rerank_training.lists.neighbours import with_vectors
from rerank_training.lists.sampling import Pool
from rerank_training.lists.sources import request_collection
from rerank_training.lists.teachers import Teacher, by_cosine, by_fusion

from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.config import QueryLikelihoodModel, load_config
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.requests import Request, read_requests
from rerank.types import Candidate, Passage

#: Weight of the first stage beside the cosine, which is that of `build-lists`.
_FIRST_STAGE = 0.3


def main(
    requests: Annotated[Path, typer.Option(help="RankLLM request JSONL, with scores.")],
    qrels: Annotated[Path, typer.Option(help="Judgements, in the form of TREC or BEIR.")],
    config: Annotated[Path, typer.Option(help="YAML settings with a query-likelihood model for each wording.")],
    kept: Annotated[Path, typer.Option(help="Folder of the likelihoods.")],
    depth: Annotated[int, typer.Option(min=2, help="Number of first candidates of each list.")] = 100,
    limit: Annotated[int, typer.Option(min=0, help="Number of first requests; 0: all.")] = 0,
    weights: Annotated[str, typer.Option(help="Weights of likelihood, with commas.")] = "0.25,0.5,0.75,1",
) -> None:
    """Print the table in Markdown."""
    pools = _pools(read_requests(requests)[: limit or None], depth)
    judged = [qrel for qrel in read_qrels(qrels) if qrel.query_id in {pool.query.query_id for pool in pools}]
    names = [model.name for model in load_config(config).models if isinstance(model, QueryLikelihoodModel)]
    with ExitStack() as stack:
        opened = (open_likelihoods(kept / f"{name}.sqlite", config, name, "auto") for name in names)
        wordings = {name: stack.enter_context(each) for name, each in zip(names, opened, strict=True)}
        for name, wording in wordings.items():
            for pool in with_progress(pools, name, len(pools), console):
                wording(pool, _passages(pool))
        print(f"| {len(pools)} queries, first {depth} | nDCG@10 |\n| --- | ---: |")
        for name, teacher in _teachers(wordings, [float(weight) for weight in weights.split(",")]).items():
            print(f"| {name} | {_ndcg(pools, teacher, judged):.4f} |")


def _teachers(wordings: Mapping[str, Teacher], weights: Sequence[float]) -> dict[str, Teacher]:
    of_mean = [(wording, 1 / len(wordings)) for wording in wordings.values()]
    mixed = {**{name: [(wording, 1.0)] for name, wording in wordings.items()}, "mean of wordings": of_mean}
    teachers: dict[str, Teacher] = {"cosine": by_cosine, "cosine + .3 first stage": by_fusion, **wordings}
    for weight in weights:
        for name, parts in mixed.items():
            others = [(wording, weight * share) for wording, share in parts]
            teachers[f"cosine + {weight:g} {name}"] = partial(by_fusion, weight=0.0, others=others)
            both = partial(by_fusion, weight=_FIRST_STAGE, others=others)
            teachers[f"cosine + .3 first stage + {weight:g} {name}"] = both
    return teachers


def _pools(requests: Sequence[Request], depth: int) -> list[Pool]:
    """The first `depth` candidates of each request, with their vectors."""
    requests = [replace(request, candidates=request.candidates[:depth]) for request in requests]
    encoder, passages = Encoder(DEFAULT_ENCODER), request_collection(requests, 0)
    vectors = encode_texts(encoder, [passage.text for passage in passages], console)
    by_id = {passage.doc_id: passage for passage in with_vectors(passages, vectors)}
    queries = [replace(request.query, vector=encoder.encode([request.query.text])[0]) for request in requests]
    found = (tuple(Candidate(by_id[c.doc_id], c.score) for c in request.candidates) for request in requests)
    return [Pool(query, candidates, {}) for query, candidates in zip(queries, found, strict=True)]


def _passages(pool: Pool) -> list[Passage]:
    return [candidate.passage for candidate in pool.candidates]


def _ndcg(pools: Sequence[Pool], teacher: Teacher, judged: Sequence[Qrel]) -> float:
    scores = ((pool, zip(_passages(pool), teacher(pool, _passages(pool)), strict=True)) for pool in pools)
    run = {pool.query.query_id: {passage.doc_id: score for passage, score in scored} for pool, scored in scores}
    return float(ir_measures.calc_aggregate([nDCG @ 10], judged, run)[nDCG @ 10])


if __name__ == "__main__":
    typer.run(main)
