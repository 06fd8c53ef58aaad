"""`eval-trec-dl` against a service of which the results are known: its ranker sorts by the number in the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ir_measures
import pytest
from typer.testing import CliRunner, Result

from eval.trec_dl import app
from rerank.errors import ConfigError
from tests.serving import Served

#: Relevance of the candidates in first-stage order, by query.
GRADES = {"q1": [0, 1, 2, 3], "q2": [1, 0, 3, 0], "q3": [3, 2, 0, 1]}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A request file and its judgements, among them a query without a request."""
    rows = [
        {
            "query": {"text": f"what is {query_id}", "qid": query_id},
            "candidates": [
                {"docid": f"d{place}", "score": 9.0 - place, "doc": {"contents": f"relevance {grade}"}}
                for place, grade in enumerate(grades)
            ],
        }
        for query_id, grades in GRADES.items()
    ]
    qrels = [f"{q} 0 d{place} {grade}\n" for q, grades in GRADES.items() for place, grade in enumerate(grades)]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "qrels.txt").write_text("".join([*qrels, "q4 0 d0 1\n"]), encoding="utf-8")
    return ["--requests", str(tmp_path / "requests.jsonl"), "--qrels", str(tmp_path / "qrels.txt")]


def evaluate(files: list[str], out: Path, *options: object) -> Result:
    return CliRunner().invoke(app, [*files, "--out", str(out), "--no-plots", *map(str, options)])


def measures(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "measures.json").read_text(encoding="utf-8"))


def test_a_perfect_ranker_is_perfect_in_every_order(files: list[str], tmp_path: Path, service: Served) -> None:
    """Three of four judged queries have a request, so the mean is .75. The trace has the first stage's numbering."""
    out = tmp_path / "out"
    options = ("--target", service.address, "--orders", "original,reversed,shuffled:2", "--concurrency", 2)
    done = evaluate(files, out, "--system", "best=first:number", "--ranker", "identity", *options)
    assert done.exit_code == 0, done.output
    for order in ("", ".reversed", ".shuffled-1", ".shuffled-2"):
        assert measures(out / f"best{order}")["mean"]["nDCG@10"] == pytest.approx(0.75)
    trace = [json.loads(line) for line in (out / "best.reversed" / "trace.jsonl").read_text().splitlines()[1:]]
    assert [row["query_id"] for row in trace] == list(GRADES)
    assert trace[0]["reply"]["positions"] == [3, 2, 1, 0]
    assert trace[0]["reply"]["execution"]["windows"] == 1
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "| best | 0.7500 | 0.7500 | 0.7500 (0.7500 to 0.7500) | 0% |" in report
    assert "count 0: q4" in report


def test_identity_equals_the_first_stage_in_every_order(files: list[str], tmp_path: Path, service: Served) -> None:
    options = ("--target", service.address, "--orders", "original,reversed")
    assert evaluate(files, tmp_path / "out", "--ranker", "identity", *options).exit_code == 0
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    table = report.partition("How much is the first stage's order")[2].partition("## ")[0]
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in table.splitlines() if line.startswith("|")}
    assert rows["identity"] == rows["first stage"]
    assert rows["oracle"][0] == rows["oracle"][1]


def test_one_system_writes_into_the_folder_itself(files: list[str], tmp_path: Path) -> None:
    """The oracle needs no service."""
    assert evaluate(files, tmp_path / "out", "--ranker", "oracle").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "measures.json",
        "report.html",
        "report.md",
        "run.trec",
        "trace.jsonl",
    ]
    found = measures(tmp_path / "out")
    assert found["missing"] == ["q4"]
    assert len(found["settings"]["requests_sha256"]) == len(found["settings"]["qrels_sha256"]) == 64
    assert found["settings"]["versions"]["rerank"]


def test_scores_in_the_run_decrease_strictly(files: list[str], tmp_path: Path, service: Served) -> None:
    evaluate(files, tmp_path / "out", "--ranker", "identity", "--target", service.address)
    run = list(ir_measures.read_trec_run((tmp_path / "out" / "run.trec").read_text(encoding="utf-8")))
    for query_id, grades in GRADES.items():
        scores = [doc.score for doc in run if doc.query_id == query_id]
        assert scores == sorted(set(scores), reverse=True)
        assert len(scores) == len(grades)


def test_depth_cuts_the_candidates(files: list[str], tmp_path: Path) -> None:
    evaluate(files, tmp_path / "out", "--ranker", "oracle", "--depth", 2)
    assert len((tmp_path / "out" / "run.trec").read_text(encoding="utf-8").splitlines()) == 6


def test_other_settings_in_the_same_folder_are_refused(files: list[str], tmp_path: Path) -> None:
    evaluate(files, tmp_path / "out", "--ranker", "oracle")
    again = evaluate(files, tmp_path / "out", "--ranker", "oracle", "--depth", 2)
    assert isinstance(again.exception, ConfigError)
    assert "depth: 0 there, 2 now" in str(again.exception)


def test_the_same_call_asks_nothing_again(files: list[str], tmp_path: Path) -> None:
    evaluate(files, tmp_path / "out", "--ranker", "oracle")
    before = (tmp_path / "out" / "trace.jsonl").read_bytes()
    again = evaluate(files, tmp_path / "out", "--ranker", "oracle")
    assert "oracle: 3 of 3 queries were answered before" in again.output
    assert (tmp_path / "out" / "trace.jsonl").read_bytes() == before
