"""Every statistic of an evaluation is over the queries that were asked, when the judgements are of more queries."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rerank_eval.commands import eval_trec_dl
from rerank_eval.evaluation import FIRST_STAGE
from scipy import stats

from tests.eval.data import evaluate, judged_collection, read_json, write_qrels, write_requests, write_run
from tests.eval.test_measures import ndcg
from tests.eval.test_report import rows
from tests.serving import Served

ASKED, JUDGED = 10, 53
DEPTH = 6


@pytest.fixture
def grades() -> dict[str, dict[str, int]]:
    """Grades of all judged queries; the first ten are asked."""
    rng = random.Random(3)
    return {f"q{n:02d}": {f"d{n}-{rank}": rng.choice([0, 0, 1, 2, 3]) for rank in range(DEPTH)} for n in range(JUDGED)}


@pytest.fixture
def asked(grades: dict[str, dict[str, int]]) -> list[str]:
    return list(grades)[:ASKED]


def write_requests_near(folder: Path, grades: dict[str, dict[str, int]], asked: list[str]) -> list[str]:
    """Flags of judgements, and of a request file whose texts have a number near the grade."""
    rng = random.Random(4)
    texts = {
        q: {doc_id: f"relevance {grade + rng.randint(0, 2)}" for doc_id, grade in grades[q].items()} for q in asked
    }
    requests, qrels = write_requests(folder / "requests.jsonl", texts), write_qrels(folder / "qrels.txt", grades)
    return ["--requests", str(requests), "--qrels", str(qrels)]


def run_of(path: Path) -> dict[str, list[str]]:
    """The documents of a TREC run, best first."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query_id, _, doc_id, *_ = line.split()
        found.setdefault(query_id, []).append(doc_id)
    return found


def slow_values(run: dict[str, list[str]], grades: dict[str, dict[str, int]], asked: list[str]) -> list[float]:
    return [ndcg(grades[query_id], run[query_id]) for query_id in asked]


def slow_comparison(system: list[float], reference: list[float]) -> dict[str, Any]:
    differences = [value - other for value, other in zip(system, reference, strict=True)]
    test = stats.ttest_rel(system, reference)
    low, high = test.confidence_interval(0.95)
    signs = [sum(sign) for sign in zip(*((d > 1e-9, abs(d) <= 1e-9, d < -1e-9) for d in differences), strict=True)]
    return {"difference": fmean(differences), "p": test.pvalue, "interval": (low, high), "signs": signs}


def test_tests_are_over_the_queries_that_were_asked(
    tmp_path: Path, grades: dict[str, dict[str, int]], asked: list[str], service: Served
) -> None:
    files, out = write_requests_near(tmp_path / "data", grades, asked), tmp_path / "out"
    systems = ("--model", "identity", "--model", "number", "--target", service.address)
    printed = evaluate(eval_trec_dl, out, *files, *systems)

    values = {name: slow_values(run_of(out / name / "run.trec"), grades, asked) for name in ("identity", "number")}
    expected = slow_comparison(values["number"], values["identity"])
    report = (out / "report.md").read_text(encoding="utf-8")
    cells = rows(report, "compared with identity")["number"]
    low, high = expected["interval"]
    assert cells[:3] == [f"{expected['difference']:+.4f}", f"{low:+.4f} to {high:+.4f}", f"{expected['p']:.4f}"]
    assert cells[3] == "/".join(map(str, expected["signs"]))
    assert f"t-test over {ASKED} queries" in report
    assert f"| number | {cells[0]} | {cells[1]} |" in printed
    assert f"Means over {ASKED} judged queries" in report
    assert read_json(out / "number" / "measures.json")["mean"]["nDCG@10"] == pytest.approx(fmean(values["number"]))


def test_run_measures_the_queries_of_the_run(
    tmp_path: Path, grades: dict[str, dict[str, int]], asked: list[str], service: Served
) -> None:
    texts = {doc_id: f"relevance {grade}" for row in grades.values() for doc_id, grade in row.items()}
    collection = judged_collection(tmp_path / "collection", texts, {q: q for q in grades}, grades)
    run, out = write_run(tmp_path / "run.trec", {q: list(grades[q]) for q in asked}), tmp_path / "out"
    given = ("--model", "number", "--target", service.address)
    printed = evaluate(eval_trec_dl, out, "--collection", collection, "--requests", run, *given)
    assert f"{ASKED} of {JUDGED} judged queries were asked; means and tests are over these." in printed
    measures = read_json(out / "measures.json")
    assert measures["mean"]["nDCG@10"] == 1.0
    assert len(measures["settings"]["requests_sha256"]) == 64
    before = slow_values({q: list(grades[q]) for q in asked}, grades, asked)
    best = [ndcg(grades[q], sorted(grades[q], key=lambda d: -grades[q][d])) for q in asked]
    report = (out / "report.md").read_text(encoding="utf-8")
    assert rows(report, "Means over")[FIRST_STAGE][0] == f"{fmean(before):.4f}"
    assert rows(report, f"compared with {FIRST_STAGE}")["number"][2] == f"{stats.ttest_rel(before, best).pvalue:.4f}"
