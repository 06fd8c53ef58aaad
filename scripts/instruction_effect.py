"""The effect of an instruction on the order of the bundled PE-Rank: against the order without one, and in nDCG@10.

python scripts/instruction_effect.py --requests requests.jsonl --qrels qrels.txt
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Annotated

import ir_measures
import typer

from rerank import Reranker
from rerank.readers.requests import read_requests
from rerank.types import Query, RankOptions

INSTRUCTIONS = {
    "none": "",
    "the task": "Rank the passages by how well they answer the question.",
    "its contrary": "Rank the passages first that do not answer the question.",
    "another topic": "Prefer passages about deep sea fishing in Norway.",
    "words without a meaning": "table seven under green because often lamp of stones.",
}


def main(requests: Annotated[Path, typer.Option()], qrels: Annotated[Path, typer.Option()], depth: int = 20) -> None:
    """Prints a row for each instruction."""
    judged = list(ir_measures.read_trec_qrels(str(qrels)))
    queries = {qrel.query_id for qrel in judged}
    lists = [each for each in read_requests(requests) if each.query.query_id in queries]
    options = RankOptions(strategy="single", window_size=depth, interpolation=0.0)
    orders: dict[str, list[list[str]]] = {}
    with Reranker("pe-rank") as reranker:
        for name, instruction in INSTRUCTIONS.items():
            orders[name] = []
            for each in lists:
                query = Query(each.query.text, instruction=instruction)
                ranked = reranker.rerank(query, each.candidates[:depth], options).ranked
                orders[name].append([item.candidate.passage.doc_id for item in ranked])
            run = [
                ir_measures.ScoredDoc(each.query.query_id, doc_id, -float(rank))
                for each, order in zip(lists, orders[name], strict=True)
                for rank, doc_id in enumerate(order)
            ]
            (ndcg,) = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], judged, run).values()
            pairs = list(zip(orders["none"], orders[name], strict=True))
            tau = sum(kendall_tau(*pair) for pair in pairs) / len(pairs)
            first = sum(before[0] == after[0] for before, after in pairs)
            print(f"| {name} | {tau:.3f} | {first} of {len(pairs)} | {ndcg:.4f} |", flush=True)


def kendall_tau(one: list[str], other: list[str]) -> float:
    """Kendall's tau of two orders of the same things."""
    place = {each: number for number, each in enumerate(other)}
    signs = [1 if place[before] < place[after] else -1 for before, after in combinations(one, 2)]
    return sum(signs) / len(signs)


if __name__ == "__main__":
    typer.run(main)
