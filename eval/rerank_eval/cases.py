"""Cases: the queries whose ranking a system changed most, for better and for worse, before and after."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rerank.types import Query
from rerank_eval.measures import MAIN_MEASURE, Evaluator, MetricValues, Run
from rerank_eval.results import SystemResult
from rerank_eval.runner import Responses

#: Number of gains, and of losses, that a report shows for each system; number of documents of each ranking.
CASES, TOP = 5, 10

#: Function from a query_id and doc_ids to texts by doc_id; leaves out those that are not at hand.
FindTexts: TypeAlias = Callable[[str, Collection[str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class RankedDoc:
    """A document of a ranking.

    Attributes:
        first_stage_rank: 1-based; None if the first stage did not find it.
        grade: its judgement; None if nobody judged it.
        text: empty if it is not at hand.
    """

    doc_id: str
    first_stage_rank: int | None
    grade: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Case:
    """A query with the first `TOP` documents of the first stage (before) and of a system (after), and their nDCG@10."""

    query_id: str
    query: str
    value_before: float
    value_after: float
    before: Sequence[RankedDoc]
    after: Sequence[RankedDoc]

    @property
    def difference(self) -> float:
        return self.value_after - self.value_before


class CaseFinder:
    """Finds the cases of systems that rerank the same first stage.

    Args:
        first_stage: the candidates of each query, best first.
        queries: by query_id.
    """

    def __init__(
        self, evaluator: Evaluator, first_stage: Run, queries: Mapping[str, Query], find_texts: FindTexts
    ) -> None:
        self._evaluator = evaluator
        self._first_stage = evaluator.preprocess(first_stage)
        #: Of the first stage.
        self.metrics = evaluator.evaluate(first_stage)
        self._queries = queries
        self._find_texts = find_texts

    def by_system(self, results: Iterable[SystemResult], responses: Responses) -> dict[str, list[Case]]:
        """The cases of every system that changed a ranking."""
        cases = {
            result.name: self.find({row.query_id: row.ranking.docs for row in responses[result.name]}, result.metrics)
            for result in results
        }
        return {name: found for name, found in cases.items() if found}

    def find(self, run: Run, metrics: MetricValues) -> list[Case]:
        """The largest gains, largest first, and then the largest losses of a system's run."""
        before, after = self._values(self.metrics), self._values(metrics)
        changes = {query_id: after[query_id] - before[query_id] for query_id in run if query_id in after}
        by_change = sorted(changes, key=lambda query_id: (-changes[query_id], query_id))
        gains = [query_id for query_id in by_change if changes[query_id] > 0][:CASES]
        losses = [query_id for query_id in reversed(by_change) if changes[query_id] < 0][:CASES]
        run = self._evaluator.preprocess(run)
        return [self._case(query_id, run, before[query_id], after[query_id]) for query_id in gains + losses]

    @staticmethod
    def _values(metrics: MetricValues) -> dict[str, float]:
        return {query_id: values[MAIN_MEASURE] for query_id, values in metrics.per_query.items()}

    def _case(self, query_id: str, run: Run, value_before: float, value_after: float) -> Case:
        candidates = [doc.doc_id for doc in self._first_stage[query_id]]
        ranked = [doc.doc_id for doc in run[query_id]]
        texts = self._find_texts(query_id, {*candidates[:TOP], *ranked[:TOP]})
        ranks = {doc_id: rank for rank, doc_id in enumerate(candidates, start=1)}
        grades = {qrel.doc_id: qrel.relevance for qrel in self._evaluator.qrels if qrel.query_id == query_id}

        def top(doc_ids: Iterable[str]) -> list[RankedDoc]:
            return [
                RankedDoc(doc_id, ranks.get(doc_id), grades.get(doc_id), texts.get(doc_id, "")) for doc_id in doc_ids
            ]

        return Case(
            query_id, self._queries[query_id].text, value_before, value_after, top(candidates[:TOP]), top(ranked[:TOP])
        )
