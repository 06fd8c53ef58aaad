"""Measures equal trec_eval's, also for missing queries, ties and negative grades; latency, throughput and cost."""

import math
import random
from typing import Any

import pytest
from rerank_eval.evaluation import best_order
from rerank_eval.measures import (
    Response,
    busy_s,
    efficiency,
    least_relevant_grade,
    measure,
    measures_from,
    warnings,
    without_query_documents,
)

from rerank.errors import ConfigError
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


@pytest.mark.parametrize("measures", [measures_from(2), measures_from(1)], ids=["rel=2", "rel=1"])
@pytest.mark.parametrize("lowest", [0, -2])
@pytest.mark.parametrize("seed", range(6))
def test_every_measure_equals_trec_eval_arithmetic(seed, lowest, measures):
    """Grades below 0 are judged and not relevant."""
    grades, run = random_run(seed, lowest)
    qrels = [Qrel(q, doc_id, grade_of(grade)) for q, row in grades.items() for doc_id, grade in row.items()]
    metrics = measure(measures, qrels, run)
    for query_id, row in grades.items():
        slow = by_trec_eval(row, run.get(query_id, []))
        assert metrics.per_query[query_id] == pytest.approx({name: slow[name] for name in metrics.mean})
    for name, mean in metrics.mean.items():
        assert mean == pytest.approx(sum(values[name] for values in metrics.per_query.values()) / len(grades))


def by_score(docs: list[ScoredDoc]) -> list[str]:
    return [doc.doc_id for doc in sorted(docs, key=lambda doc: (doc.score, doc.doc_id), reverse=True)]


@pytest.mark.parametrize(
    ("grades", "asked", "least"),
    [
        ([1, 0], 0, 1),
        ([2, 1], 0, 1),
        ([3, 2, 1], 0, 2),
        ([3, *[1] * 7], 0, 1),
        ([5, 3], 0, 1),
        ([3, 2, 1], 1, 1),
        ([3, 1], 3, 3),
    ],
)
def test_least_relevant_grade_follows_the_judgements(grades, asked, least):
    """Grade 2 on the scale of TREC Deep Learning; one high grade among many of 1 does not make that scale."""
    qrels = [Qrel("q", f"d{place}", grade) for place, grade in enumerate(grades)]
    assert least_relevant_grade(qrels, asked) == least
    with pytest.raises(ConfigError, match=rf"--rel 9 exceeds the highest grade {max(grades)} .* use at most"):
        least_relevant_grade(qrels, 9)


def test_unjudged_query_does_not_count():
    run = {"q": [ScoredDoc("a", 1.0)], "other": [ScoredDoc("b", 1.0)]}
    metrics = measure(measures_from(2), [Qrel("q", "a", 2)], run)
    assert metrics.mean["nDCG@10"] == 1.0
    assert list(metrics.per_query) == ["q"]


def test_document_with_the_id_of_its_query_is_dropped_unless_ids_are_equal_by_chance():
    run = {"a": [ScoredDoc("a", 2.0), ScoredDoc("b", 1.0)]}
    assert without_query_documents([Qrel("a", "b", 1)], run) == {"a": [ScoredDoc("b", 1.0)]}
    assert without_query_documents([Qrel("a", "b", 1), Qrel("c", "c", 1)], run) == run
    judged_not_relevant = [Qrel("a", "b", 1), Qrel("a", "a", 0)]  # as ArguAna's pools have it
    assert without_query_documents(judged_not_relevant, run) == {"a": [ScoredDoc("b", 1.0)]}


def test_best_order_is_by_grades_and_keeps_the_order_of_equal_ones():
    run = {"q": [ScoredDoc(doc_id, 0.0) for doc_id in ("d0", "d1", "d2", "d3")], "empty": []}
    best = best_order([Qrel("q", "d3", 3), Qrel("q", "d1", 1), Qrel("other", "d2", 3)], run)
    assert [doc.doc_id for doc in best["q"]] == ["d3", "d1", "d0", "d2"]
    assert best["empty"] == []


# --- efficiency


def response(wall_ms: float, ended_at: float, **execution: Any) -> Response:
    return Response("q", ("a",), (1.0,), (0,), execution, wall_ms, ended_at)


@pytest.mark.parametrize(
    ("walls", "p50", "p99"), [([250.0], 250.0, 250.0), ([100.0] * 98 + [500.0, 900.0], 100.0, 504.0)]
)
def test_latencies_are_percentiles(walls, p50, p99):
    found = efficiency([response(ms, 10.0) for ms in walls])
    assert (found["p50 ms"], found["p99 ms"]) == pytest.approx((p50, p99))
    assert found["queries/s"] == pytest.approx(len(walls) / (max(walls) / 1000))


@pytest.mark.parametrize(
    ("responses", "seconds"),
    [
        ([(2000.0, 12.0), (2000.0, 13.0)], 3.0),
        ([(5000.0, 10.0), (1000.0, 8.0)], 5.0),
        ([(5000.0, 10.0), (1000.0, 8.0), (1000.0, 9.5)], 5.0),
        ([(1000.0, 10.0), (1000.0, 5000.0)], 2.0),
    ],
    ids=["overlap", "one within another", "two within another", "a pause before a resumed run"],
)
def test_time_in_which_anything_was_answered_is_counted_once(responses, seconds):
    assert busy_s([response(*span) for span in responses]) == pytest.approx(seconds)


def test_costs_are_means_and_warnings_are_sums():
    """An int64 is a string in JSON."""
    written = {"decode_tokens": "100", "decode_ms": 6.0, "model_ms": 8.0}
    served = {"windows": 9, "rounds": 9, "tokens": "1800", **written, "completeness": "COMPLETENESS_FULL"}
    partial = {"windows": 1, "rounds": 1, "tokens": "200", "completeness": "COMPLETENESS_PARTIAL"}
    partial |= {"truncated_doc_ids": ["a", "b"], "query_truncated": True}
    partial |= {"repaired_identifiers": 3, "generated_identifiers": 12}
    responses = [response(1, 1, **served), response(1, 2, **partial)]
    expected = {"windows": 5.0, "rounds": 5.0}
    expected |= {"prefill tokens": 950.0, "prefill ms": 1.0, "decode tokens": 50.0, "decode ms": 3.0}
    assert efficiency(responses).items() > expected.items()
    counts, queries = warnings(responses)
    assert counts.startswith("1 lists were reranked only in part, 2 passages were truncated, 3 of 12 identifiers")
    assert counts.endswith(" in generated permutations were repaired (25%).")
    assert queries.startswith("1 queries are longer")
    (kept,) = warnings([response(1, 1, **served | {"completeness": "COMPLETENESS_NONE"})])
    assert kept == "1 lists kept the order of their first stage."


def test_warnings_of_replies_are_counted_by_their_kinds():
    """Here two that differ in numbers only, one alone, and a reply without any."""
    of_language = "the query has letters that the model does not know"
    given = ["3 of 20 places (15%) were repaired", of_language, "", "1 of 2.5 places (40%) were repaired"]
    assert list(warnings([response(1, end, model_warning=text) for end, text in enumerate(given)])) == [
        "2 replies had a warning such as: 3 of 20 places (15%) were repaired.",
        f"1 replies had a warning: {of_language}.",
    ]


def test_no_more_than_20_kinds_of_warnings_are_named():
    *named, last = warnings([response(1, 1, model_warning=f"field {chr(97 + n)}") for n in range(23)])
    assert len(named) == 20
    assert last.startswith("3 other kinds")
