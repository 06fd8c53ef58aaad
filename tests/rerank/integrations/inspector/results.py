"""Results of an evaluation as `eval-beir` and `eval-trec-dl` write them, made by the evaluation's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rerank_eval.measures import Evaluator, measures_from
from rerank_eval.run_files import write_run
from rerank_eval.trace import RankedList, Response, TraceFile

from rerank.collections import beir
from tests.eval.data import judged_collection

#: query_id → text
QUERIES = {"q1": "tides of the moon", "q2": "who bites whom"}
GRADES = {"q1": {"moon": 1, "tides": 2, "desert": 0}, "q2": {"flea-bite": 1}}
#: What the first stage found for each query, best first.
FIRST_STAGE = {"q1": ("glacier", "desert", "moon", "tides"), "q2": ("flea-bite", "flea", "cello")}

EXECUTION = {"model": "number", "strategy": "sliding(20/10)", "windows": 1, "tokens": "40", "total_ms": 2.5}


def write_collection(folder: Path, beir_folder: Path) -> Path:
    """A collection of PASSAGES with queries and judgements."""
    return judged_collection(folder, beir_folder / "corpus.jsonl", QUERIES, GRADES)


def write_system(
    out: Path,
    settings: Mapping[str, str],
    orders: Mapping[str, Sequence[str]],
    collection: Path,
    execution: Mapping[str, object] = EXECUTION,
) -> None:
    """Writes the results of a system that ranked the queries so: trace.jsonl, measures.json and run.trec."""
    trace = TraceFile(out / "trace.jsonl", {"ranker": "number"})
    run = {}
    for query_id, doc_ids in orders.items():
        places = tuple(FIRST_STAGE[query_id].index(doc_id) for doc_id in doc_ids)
        scores = tuple(float(len(doc_ids) - rank) for rank in range(len(doc_ids)))
        ranking = RankedList(tuple(doc_ids), scores, places, execution)
        trace.add(Response(query_id, 3.0, 0.0, ranking))
        run[query_id] = ranking.docs
    metrics = Evaluator(measures_from(), beir.qrels(collection)).evaluate(run)
    write_run(out, run, metrics, {"qrels_sha256": "0" * 64, "collection": str(collection), "split": "test", **settings})
