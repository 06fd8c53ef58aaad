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


@dataclass(frozen=True, slots=True)
class Report:
    """Values by measure (as ir_measures spells it), over all judged queries and for each."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def measure(measures: Sequence[Measure], qrels: Iterable[Qrel], run: Run) -> Report:
    """The measures of a run. A judged query that the run lacks counts with 0; an unjudged one does not count."""
    judged = list(qrels)
    docs = [ir_measures.ScoredDoc(query_id, doc.doc_id, doc.score) for query_id, found in run.items() for doc in found]
    names = [str(m) for m in measures]
    per_query = {query_id: dict.fromkeys(names, 0.0) for query_id in sorted({qrel.query_id for qrel in judged})}
    for metric in ir_measures.iter_calc(measures, judged, docs):
        if metric.query_id in per_query:
            per_query[metric.query_id][str(metric.measure)] = metric.value
    return Report({name: fmean(values[name] for values in per_query.values()) for name in names}, per_query)
