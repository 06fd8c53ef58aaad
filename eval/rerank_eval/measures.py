"""Measures of a system: effectiveness by ir_measures, such as nDCG@10, and latency, throughput and model cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

import ir_measures
import numpy as np
from ir_measures import AP, RR, Judged, Measure, R, nDCG

from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel
from rerank.types import ScoredDoc

#: query_id → its documents, best first, with strictly decreasing scores.
Run: TypeAlias = Mapping[str, Sequence[ScoredDoc]]

#: The measure that systems are compared by.
MAIN_MEASURE = str(nDCG @ 10)
#: The highest grade of TREC Deep Learning.
_DEEP_LEARNING_MAX_GRADE = 3
#: Judgements on TREC Deep Learning's scale have at least this share of grades 2 and 3 among the grades above 0.
_DEEP_LEARNING_MIN_SHARE = 0.25
#: Column of the costs → its number of decimal places. Latencies are measured at the caller. Prefill is what the model
#: reads before it writes, decode what it writes token by token. From `windows` on, the numbers are means per query.
COST_COLUMNS = {
    "p50 ms": 1,
    "p95 ms": 1,
    "p99 ms": 1,
    "queries/s": 2,
    "windows": 1,
    "rounds": 1,
    "prefill tokens": 0,
    "prefill ms": 0,
    "decode tokens": 0,
    "decode ms": 0,
}
#: The most truncated queries that a warning names, and the most kinds of warnings that are shown.
_MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class Response:
    """A system's order of the candidates of one query, best first, as its caller saw it.

    Attributes:
        scores: the scores of `doc_ids`, strictly decreasing.
        positions: the position of each document in the first stage's order, 0-based.
        execution: the fields of the message Execution (rerank.proto) as JSON, `score_kind` and `preranker_score_kind`.
        wall_ms: latency at the caller, in ms.
        ended_at: time of the answer, in seconds of Unix time.
        preranker_scores: in a cascade, the preranker's scores in the order of `doc_ids`; nan for a document that it
            did not score. Empty without a cascade, or if the preranker's scores cannot be compared.
    """

    query_id: str
    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]
    positions: tuple[int, ...]
    execution: Mapping[str, Any]
    wall_ms: float
    ended_at: float
    preranker_scores: tuple[float, ...] = ()

    @property
    def docs(self) -> list[ScoredDoc]:
        return [ScoredDoc(*row) for row in zip(self.doc_ids, self.scores, strict=True)]

    @property
    def first_stage_doc_ids(self) -> list[str]:
        """The doc_ids in the first stage's order."""
        return [doc_id for _, doc_id in sorted(zip(self.positions, self.doc_ids, strict=True))]


def by_rank(doc_ids: Iterable[str]) -> list[ScoredDoc]:
    """Documents that come best first, with minus their rank as their score, because ir_measures sorts by score."""
    return [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(doc_ids)]


def measures_from(rel: int = 1) -> tuple[Measure, ...]:
    """The measures of `eval-beir` and `eval-trec-dl`. RR, AP and R count grade `rel` and above as relevant."""
    return (nDCG @ 10, RR(rel=rel) @ 10, AP(rel=rel) @ 100, R(rel=rel) @ 100, Judged @ 10)


def least_relevant_grade(qrels: Iterable[Qrel], requested: int = 0) -> int:
    """The lowest grade that RR, AP and R count as relevant: 2 on the scale of TREC Deep Learning, otherwise 1.

    TREC's scale goes from 0 to 3, and grade 1 means that a passage is about the query but does not answer it.
    Judgements count as TREC's if 3 is their highest grade and at least a quarter of the grades above 0 are 2 or 3; in
    TREC's judgements half of the grades above 0 are. So a few high grades, which may be mistakes, do not decide.

    Args:
        requested: the grade that the user states; 0: it is decided by the judgements.

    Raises:
        ConfigError: `requested` exceeds the highest grade, so that every measure would be 0.
    """
    grades = [qrel.relevance for qrel in qrels if qrel.relevance > 0]
    highest = max(grades, default=0)
    if requested > max(highest, 1):
        raise ConfigError(
            f"--rel {requested} exceeds the highest grade {highest} of the judgements; use at most {highest}"
        )
    graded_2_or_3 = sum(grade > 1 for grade in grades)
    is_deep_learning = highest == _DEEP_LEARNING_MAX_GRADE and graded_2_or_3 >= _DEEP_LEARNING_MIN_SHARE * len(grades)
    return requested or (2 if is_deep_learning else 1)


@dataclass(frozen=True, slots=True)
class MetricValues:
    """The values of measures, which have their names in ir_measures.

    Attributes:
        mean: measure → mean over the judged queries.
        per_query: query_id → measure → value, sorted by query_id.
    """

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]

    def values(self, measure: str = MAIN_MEASURE) -> list[float]:
        """One value per judged query, sorted by query_id."""
        return [values[measure] for values in self.per_query.values()]


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
    """The run without documents that have the id of their query, as BEIR evaluates; in ArguAna, queries are documents.

    The run stays as it is if the judgements call such a document relevant: then the ids are equal by chance, as in
    Cranfield, where all ids are numbers.
    """
    if any(qrel.query_id == qrel.doc_id and qrel.relevance > 0 for qrel in qrels):
        return run
    return {query_id: [doc for doc in docs if doc.doc_id != query_id] for query_id, docs in run.items()}


def efficiency(responses: Sequence[Response]) -> dict[str, float]:
    """The values of COST_COLUMNS over all queries with results; empty without results."""
    responses = [response for response in responses if response.doc_ids]
    if not responses:
        return {}
    executions = [response.execution for response in responses]
    windows, rounds, tokens, model_ms, decode_tokens, decode_ms = (
        sum(float(execution.get(name, 0)) for execution in executions) / len(executions)
        for name in ("windows", "rounds", "tokens", "model_ms", "decode_tokens", "decode_ms")
    )
    latencies = np.percentile([response.wall_ms for response in responses], [50, 95, 99]).tolist()
    queries_per_s = len(responses) / max(busy_s(responses), 1e-9)
    prefill = (tokens - decode_tokens, model_ms - decode_ms)
    values = (*latencies, queries_per_s, windows, rounds, *prefill, decode_tokens, decode_ms)
    return dict(zip(COST_COLUMNS, values, strict=True))


def warnings(responses: Sequence[Response]) -> Iterator[str]:
    """Sentences on what limits the figures: partial lists, truncated texts, repairs, and the warnings of replies.

    Warnings that differ only in their numbers count as one kind.
    """
    executions = [response.execution for response in responses]
    completeness = Counter(row.get("completeness") for row in executions)
    truncated = sum(len(row.get("truncated_doc_ids", ())) for row in executions)
    repaired, generated = (
        sum(int(row.get(name, 0)) for row in executions) for name in ("repaired_identifiers", "generated_identifiers")
    )
    share = f"({repaired / generated:.0%})" if repaired else ""
    counted = (
        (completeness["COMPLETENESS_PARTIAL"], "lists were reranked only in part"),
        (completeness["COMPLETENESS_NONE"], "lists kept the order of their first stage"),
        (truncated, "passages were truncated"),
        (repaired, f"of {generated} identifiers in generated permutations were repaired {share}"),
    )
    if sentence := ", ".join(f"{count} {what}" for count, what in counted if count):
        yield f"{sentence}."
    if queries := [response.query_id for response in responses if response.execution.get("query_truncated")]:
        others = " and others" if len(queries) > _MAX_NAMED else ""
        names = ", ".join(queries[:_MAX_NAMED]) + others
        yield f"{len(queries)} queries are longer than a model reads and were truncated: {names}."
    kinds: dict[str, list[str]] = {}
    for warning in filter(None, (row.get("model_warning") for row in executions)):
        kinds.setdefault(re.sub(r"\d[\d.,]*", "0", warning), []).append(warning)
    for same in sorted(kinds.values(), key=len, reverse=True)[:_MAX_NAMED]:
        yield f"{len(same)} replies had a warning{' such as' if len({*same}) > 1 else ''}: {same[0]}."
    if len(kinds) > _MAX_NAMED:
        yield f"{len(kinds) - _MAX_NAMED} other kinds of warnings of replies stand in trace.jsonl."


def busy_s(responses: Iterable[Response]) -> float:
    """Seconds while at least one query was running; the pause before a run is resumed does not count."""
    total, busy_until = 0.0, float("-inf")
    for start, end in sorted(
        (response.ended_at - response.wall_ms / 1000, response.ended_at) for response in responses
    ):
        total += max(0.0, end - max(start, busy_until))
        busy_until = max(busy_until, end)
    return total
