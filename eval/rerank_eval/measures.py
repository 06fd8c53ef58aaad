"""Runs against judgements, through ir_measures: per query, and the mean over all judged queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

import ir_measures
from ir_measures import AP, RR, Judged, Measure, Qrel, R, nDCG

from rerank.types import ScoredDoc

#: query_id → its documents, best first, with strictly decreasing scores.
Run: TypeAlias = Mapping[str, Sequence[ScoredDoc]]

#: TREC Deep Learning: binary measures count grade 2 and above as relevant.
TREC_DL = (nDCG @ 10, RR(rel=2) @ 10, AP(rel=2) @ 100, R(rel=2) @ 100, Judged @ 10)
BEIR = (nDCG @ 10, RR @ 10, R @ 100, Judged @ 10)
#: What systems are compared by.
MAIN = str(nDCG @ 10)


@dataclass(frozen=True, slots=True)
class Report:
    """Values by measure (as ir_measures spells it), over all judged queries and for each.

    `missing` names the judged queries that the run lacks; they count with 0.
    """

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]
    missing: tuple[str, ...] = ()

    def values(self, measure: str = MAIN) -> list[float]:
        """One value a judged query, in the order of their ids."""
        return [values[measure] for values in self.per_query.values()]


def measure(measures: Sequence[Measure], qrels: Iterable[Qrel], run: Run) -> Report:
    """The measures of a run. A judged query that the run lacks counts with 0; an unjudged one does not count.

    Labels below 0 count as 0, judged and not relevant: trec_eval would take them for unjudged. Equal scores are in
    trec_eval's order, by falling doc_id, for all measures; ir_measures leaves that to whoever computes each.
    """
    judged = [Qrel(qrel.query_id, qrel.doc_id, max(qrel.relevance, 0)) for qrel in qrels]
    docs = [
        ir_measures.ScoredDoc(query_id, doc_id, -rank)
        for query_id, found in run.items()
        for rank, doc_id in enumerate(_in_order_of_trec_eval(found))
    ]
    names = [str(m) for m in measures]
    per_query = {query_id: dict.fromkeys(names, 0.0) for query_id in sorted({qrel.query_id for qrel in judged})}
    for metric in ir_measures.iter_calc(measures, judged, docs):
        if metric.query_id in per_query:
            per_query[metric.query_id][str(metric.measure)] = metric.value
    mean = {name: fmean(values[name] for values in per_query.values()) for name in names}
    return Report(mean, per_query, tuple(query_id for query_id in per_query if query_id not in run))


def _in_order_of_trec_eval(docs: Sequence[ScoredDoc]) -> list[str]:
    return [doc.doc_id for doc in sorted(docs, key=lambda doc: (doc.score, doc.doc_id), reverse=True)]


def without_own_documents(qrels: Iterable[Qrel], run: Run) -> Run:
    """The run without documents that bear their query's id, as BEIR evaluates it: in ArguAna the query is one of them.

    Unless the judgements call such a document relevant. Then ids are equal by chance, as Cranfield's numbers are.
    """
    if any(qrel.query_id == qrel.doc_id and qrel.relevance > 0 for qrel in qrels):
        return run
    return {query_id: [doc for doc in docs if doc.doc_id != query_id] for query_id, docs in run.items()}
