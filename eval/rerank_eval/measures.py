"""Effectiveness measures by ir_measures: nDCG@10 and the like, per query and as the mean over the judged queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

import ir_measures
from ir_measures import AP, RR, Judged, Measure, R, nDCG

from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel
from rerank.types import ScoredDoc

#: query_id → its documents, best first, with strictly decreasing scores.
Run: TypeAlias = Mapping[str, Sequence[ScoredDoc]]

#: The measure that systems are compared by.
MAIN_MEASURE = str(nDCG @ 10)
#: The highest grade of TREC Deep Learning, and the least share of grade 2 and above among the grades above 0:
#: judgements with this highest grade and share are on its scale.
_HIGHEST, _SHARE = 3, 0.25


def by_rank(doc_ids: Iterable[str]) -> list[ScoredDoc]:
    """Gives documents, best first, the scores that ir_measures sorts by."""
    return [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(doc_ids)]


def measures_from(rel: int = 1) -> tuple[Measure, ...]:
    """The measures of both commands: RR, AP and R count grade `rel` and above as relevant."""
    return (nDCG @ 10, RR(rel=rel) @ 10, AP(rel=rel) @ 100, R(rel=rel) @ 100, Judged @ 10)


def least_relevant_grade(qrels: Iterable[Qrel], asked: int = 0) -> int:
    """The lowest grade that RR, AP and R count as relevant: 2 on the scale of TREC Deep Learning, otherwise 1.

    Its scale goes from 0 to 3, and grade 1 means that a passage is about the query and does not answer it. It is taken
    for that scale if 3 is the highest grade and a quarter of the grades above 0 are 2 or 3; in TREC's judgements half
    of them are. A few high grades, as by mistake, do not decide.

    Args:
        asked: this grade instead; 0: none.

    Raises:
        ConfigError: no judgement has the grade that is asked for, so that these measures would be 0.
    """
    grades = [qrel.relevance for qrel in qrels if qrel.relevance > 0]
    highest = max(grades, default=0)
    if asked > max(highest, 1):
        raise ConfigError(f"--rel {asked} exceeds the highest grade {highest} of the judgements; use at most {highest}")
    is_deep_learning = highest == _HIGHEST and sum(grade > 1 for grade in grades) >= _SHARE * len(grades)
    return asked or (2 if is_deep_learning else 1)


@dataclass(frozen=True, slots=True)
class MetricValues:
    """Values by measure (spelled as ir_measures does): the mean over the judged queries, and per query."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]

    def values(self, measure: str = MAIN_MEASURE) -> list[float]:
        """One value per judged query, sorted by query_id."""
        return [values[measure] for values in self.per_query.values()]


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Measures runs against the judgements of one dataset.

    Attributes:
        qrels: of the queries that count.
        of_collection: all judgements, if queries could be documents of the collection; see `without_query_documents`.
    """

    measures: Sequence[Measure]
    qrels: Sequence[Qrel]
    of_collection: Sequence[Qrel] = ()

    def counted(self, run: Run) -> Run:
        """The part of a run that is measured."""
        return without_query_documents(self.of_collection, run) if self.of_collection else run

    def evaluate(self, run: Run) -> MetricValues:
        return measure(self.measures, self.qrels, self.counted(run))


def measure(measures: Sequence[Measure], qrels: Iterable[Qrel], run: Run) -> MetricValues:
    """Measures a run. A judged query that the run lacks counts as 0; a query without judgements is ignored.

    Documents with equal scores are sorted as trec_eval sorts them, by descending doc_id, for all measures; ir_measures
    leaves that to the library of each measure.
    """
    judgements = list(qrels)
    docs = [
        ir_measures.ScoredDoc(query_id, doc_id, -rank)
        for query_id, ranked in run.items()
        for rank, doc_id in enumerate(_in_order_of_trec_eval(ranked))
    ]
    names = [str(m) for m in measures]
    per_query = {query_id: dict.fromkeys(names, 0.0) for query_id in sorted({qrel.query_id for qrel in judgements})}
    for metric in ir_measures.iter_calc(measures, judgements, docs):
        if metric.query_id in per_query:
            per_query[metric.query_id][str(metric.measure)] = metric.value
    mean = {name: fmean(values[name] for values in per_query.values()) for name in names}
    return MetricValues(mean, per_query)


def _in_order_of_trec_eval(docs: Sequence[ScoredDoc]) -> list[str]:
    return [doc.doc_id for doc in sorted(docs, key=lambda doc: (doc.score, doc.doc_id), reverse=True)]


def without_query_documents(qrels: Iterable[Qrel], run: Run) -> Run:
    """The run without documents that have the query's id, as BEIR evaluates; in ArguAna, queries are documents.

    The run stays as it is if the judgements call such a document relevant: then ids are equal by chance, as the
    numbers of Cranfield are.
    """
    if any(qrel.query_id == qrel.doc_id and qrel.relevance > 0 for qrel in qrels):
        return run
    return {query_id: [doc for doc in docs if doc.doc_id != query_id] for query_id, docs in run.items()}
