"""Measures equal trec_eval's, also for missing queries, ties and negative grades."""

from __future__ import annotations

import math
import random

import ir_measures
import pytest
from rerank_eval.evaluation import best_order
from rerank_eval.measures import measure, measures_from, without_query_documents

from rerank.readers.qrels import Qrel, grade_of
from rerank.types import ScoredDoc

#: doc_id → relevance; documents without judgement are left out.
Grades = dict[str, int]


def by_trec_eval(grades: Grades, docs: list[ScoredDoc]) -> dict[str, float]:
    """All measures of one query, by loops: sorted by score, equal scores by descending doc_id; linear gain."""
    ranked = by_score(docs)
    return {
        "nDCG@10": ndcg(grades, ranked),
        "RR@10": reciprocal_rank(grades, ranked, level=1),
        "RR(rel=2)@10": reciprocal_rank(grades, ranked, level=2),
        "AP@100": average_precision(grades, ranked, level=1),
        "AP(rel=2)@100": average_precision(grades, ranked, level=2),
        "R@100": recall(grades, ranked, level=1),
        "R(rel=2)@100": recall(grades, ranked, level=2),
        "Judged@10": sum(doc_id in grades for doc_id in ranked[:10]) / min(len(ranked), 10) if ranked else 0.0,
    }


def ndcg(grades: Grades, ranked: list[str]) -> float:
    gain = sum(max(grades.get(doc_id, 0), 0) / math.log2(place + 2) for place, doc_id in enumerate(ranked[:10]))
    best = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:10]
    ideal = sum(grade / math.log2(place + 2) for place, grade in enumerate(best))
    return gain / ideal if ideal else 0.0


def reciprocal_rank(grades: Grades, ranked: list[str], level: int) -> float:
    places = (place for place, doc_id in enumerate(ranked[:10], start=1) if grades.get(doc_id, 0) >= level)
    return 1 / next(places, math.inf)


def average_precision(grades: Grades, ranked: list[str], level: int) -> float:
    relevant = sum(grade >= level for grade in grades.values())
    found, total = 0, 0.0
    for place, doc_id in enumerate(ranked[:100], start=1):
        if grades.get(doc_id, 0) >= level:
            found += 1
            total += found / place
    return total / relevant if relevant else 0.0


def recall(grades: Grades, ranked: list[str], level: int) -> float:
    relevant = {doc_id for doc_id, grade in grades.items() if grade >= level}
    return len(relevant & set(ranked[:100])) / len(relevant) if relevant else 0.0


def random_run(seed: int, lowest: int = 0) -> tuple[dict[str, Grades], dict[str, list[ScoredDoc]]]:
    """Random judgements, and a run with ties, missing queries and unjudged passages, longer than every cut-off."""
    rng = random.Random(seed)
    levels = [lowest, 0, 0, 1, 2, 3]
    grades = {f"q{q}": {f"d{d}": rng.choice(levels) for d in rng.sample(range(150), 60)} for q in range(6)}
    run = {
        query_id: [ScoredDoc(f"d{d}", float(rng.randint(0, 40))) for d in rng.sample(range(200), 130)]
        for query_id in grades
        if rng.random() < 0.8
    }
    return grades, run


def qrels_of(grades: dict[str, Grades]) -> list[Qrel]:
    return [
        Qrel(query_id, doc_id, grade_of(grade)) for query_id, row in grades.items() for doc_id, grade in row.items()
    ]


@pytest.mark.parametrize("measures", [measures_from(2), measures_from(1)], ids=["rel=2", "rel=1"])
@pytest.mark.parametrize("lowest", [0, -2])
@pytest.mark.parametrize("seed", range(6))
def test_every_measure_equals_trec_eval_arithmetic(
    seed: int, lowest: int, measures: tuple[ir_measures.Measure, ...]
) -> None:
    """Grades below 0 are judged and not relevant."""
    grades, run = random_run(seed, lowest)
    metrics = measure(measures, qrels_of(grades), run)
    for query_id, row in grades.items():
        slow = by_trec_eval(row, run.get(query_id, []))
        assert metrics.per_query[query_id] == pytest.approx({name: slow[name] for name in metrics.mean})
    for name, mean in metrics.mean.items():
        assert mean == pytest.approx(sum(values[name] for values in metrics.per_query.values()) / len(grades))


def by_score(docs: list[ScoredDoc]) -> list[str]:
    return [doc.doc_id for doc in sorted(docs, key=lambda doc: (doc.score, doc.doc_id), reverse=True)]


def test_unjudged_query_does_not_count() -> None:
    metrics = measure(
        measures_from(2), [Qrel("q", "a", 2)], {"q": [ScoredDoc("a", 1.0)], "other": [ScoredDoc("b", 1.0)]}
    )
    assert metrics.mean["nDCG@10"] == 1.0
    assert list(metrics.per_query) == ["q"]


def test_document_with_the_id_of_its_query_is_dropped_unless_ids_are_equal_by_chance() -> None:
    run = {"a": [ScoredDoc("a", 2.0), ScoredDoc("b", 1.0)]}
    assert without_query_documents([Qrel("a", "b", 1)], run) == {"a": [ScoredDoc("b", 1.0)]}
    assert without_query_documents([Qrel("a", "b", 1), Qrel("c", "c", 1)], run) == run


def test_best_order_is_by_grades_and_keeps_the_order_of_equal_ones() -> None:
    run = {"q": [ScoredDoc(doc_id, 0.0) for doc_id in ("d0", "d1", "d2", "d3")], "empty": []}
    best = best_order([Qrel("q", "d3", 3), Qrel("q", "d1", 1), Qrel("other", "d2", 3)], run)
    assert [doc.doc_id for doc in best["q"]] == ["d3", "d1", "d0", "d2"]
    assert best["empty"] == []
