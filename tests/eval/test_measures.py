"""Measures against trec_eval's own arithmetic, with absence treated as carefully as presence."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from ir_measures import Qrel

from eval.measures import BEIR, TREC_DL, measure
from rerank.types import ScoredDoc


def ndcg_at_10(grades: dict[str, int], docs: Sequence[ScoredDoc]) -> float:
    """trec_eval's ndcg_cut.10: linear gain, score order, equal scores by falling doc_id."""
    ranked = sorted(docs, key=lambda doc: (doc.score, doc.doc_id), reverse=True)[:10]
    gain = sum(max(grades.get(doc.doc_id, 0), 0) / math.log2(rank + 2) for rank, doc in enumerate(ranked))
    best = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:10]
    ideal = sum(grade / math.log2(rank + 2) for rank, grade in enumerate(best))
    return gain / ideal if ideal else 0.0


@pytest.mark.parametrize("seed", range(20))
def test_ndcg_equals_trec_eval_arithmetic(seed: int) -> None:
    """Random runs with ties, missing queries and unjudged passages."""
    rng = random.Random(seed)
    grades = {f"q{q}": {f"d{d}": rng.choice([0, 0, 1, 2, 3]) for d in range(30)} for q in range(6)}
    run = {
        query_id: [ScoredDoc(f"d{d}", rng.randint(0, 8)) for d in rng.sample(range(45), 25)]
        for query_id in grades
        if rng.random() < 0.8
    }
    qrels = [Qrel(query_id, doc_id, grade) for query_id, own in grades.items() for doc_id, grade in own.items()]
    report = measure(BEIR, qrels, run)
    expected = {query_id: ndcg_at_10(own, run.get(query_id, [])) for query_id, own in grades.items()}
    assert {q: values["nDCG@10"] for q, values in report.per_query.items()} == pytest.approx(expected)
    assert report.mean["nDCG@10"] == pytest.approx(sum(expected.values()) / len(expected))


def test_judged_query_without_results_counts_with_zero() -> None:
    qrels = [Qrel("found", "a", 2), Qrel("missing", "a", 2)]
    report = measure(TREC_DL, qrels, {"found": [ScoredDoc("a", 1.0)]})
    assert report.per_query["missing"]["nDCG@10"] == 0.0
    assert report.mean["nDCG@10"] == 0.5


def test_unjudged_query_does_not_count() -> None:
    report = measure(TREC_DL, [Qrel("q", "a", 2)], {"q": [ScoredDoc("a", 1.0)], "other": [ScoredDoc("b", 1.0)]})
    assert report.mean["nDCG@10"] == 1.0
    assert list(report.per_query) == ["q"]


def test_binary_measures_count_grade_two_and_above() -> None:
    report = measure(TREC_DL, [Qrel("q", "a", 1), Qrel("q", "b", 2)], {"q": [ScoredDoc("a", 2.0), ScoredDoc("b", 1.0)]})
    assert report.mean["RR(rel=2)@10"] == 0.5


def test_empty_run_is_all_zero() -> None:
    assert set(measure(TREC_DL, [Qrel("q", "a", 1)], {}).mean.values()) == {0.0}
