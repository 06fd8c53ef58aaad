"""`eval-trec-dl` with a service whose results are known: its ranker sorts by the number in the text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ir_measures
import pytest
from rerank_eval.trec_dl import app
from typer.testing import CliRunner, Result

from rerank.errors import ConfigError
from tests.serving import Served

#: Relevance of the candidates in first-stage order, by query.
GRADES = {"q1": [0, 1, 2, 3], "q2": [1, 0, 3, 0], "q3": [3, 2, 0, 1]}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A request file and its judgements, including a query without a request."""
    rows = [
        {
            "query": {"text": f"what is {query_id}", "qid": query_id},
            "candidates": [
                {"docid": f"d{rank}", "score": 9.0 - rank, "doc": {"contents": f"relevance {grade}"}}
                for rank, grade in enumerate(grades)
            ],
        }
        for query_id, grades in GRADES.items()
    ]
    qrels = [f"{q} 0 d{rank} {grade}\n" for q, grades in GRADES.items() for rank, grade in enumerate(grades)]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "qrels.txt").write_text("".join([*qrels, "q4 0 d0 1\n"]), encoding="utf-8")
    return ["--requests", str(tmp_path / "requests.jsonl"), "--qrels", str(tmp_path / "qrels.txt")]


def evaluate(files: list[str], out: Path, *options: object) -> Result:
    return CliRunner().invoke(app, [*files, "--out", str(out), "--no-plots", *map(str, options)])


def measures(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "measures.json").read_text(encoding="utf-8"))


def test_perfect_ranker_is_perfect_in_every_order(files: list[str], tmp_path: Path, service: Served) -> None:
    """Three of four judged queries have a request; the trace holds positions of the first stage."""
    out = tmp_path / "out"
    options = ("--target", service.address, "--orders", "original,reversed,shuffled:2", "--concurrency", 2)
    done = evaluate(files, out, "--system", "best=first:number", "--ranker", "identity", *options)
    assert done.exit_code == 0, done.output
    for order in ("", ".reversed", ".shuffled-1", ".shuffled-2"):
        assert measures(out / f"best{order}")["mean"]["nDCG@10"] == pytest.approx(1.0)
    trace = [json.loads(line) for line in (out / "best.reversed" / "trace.jsonl").read_text().splitlines()[1:]]
    assert [row["query_id"] for row in trace] == list(GRADES)
    assert trace[0]["reply"]["positions"] == [3, 2, 1, 0]
    assert trace[0]["reply"]["execution"]["windows"] == 1
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "| best | 1.0000 | 1.0000 | 1.0000 (1.0000 to 1.0000) | 0% |" in report


def test_all_judged_queries_count_in_the_means_if_asked_for(files: list[str], tmp_path: Path) -> None:
    done = evaluate(files, tmp_path / "out", "--ranker", "oracle", "--all-judged")
    assert done.exit_code == 0, done.output
    assert measures(tmp_path / "out")["mean"]["nDCG@10"] == pytest.approx(0.75)
    assert "count as 0: q4" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_unordered_lists_are_compared_with_the_orders(files: list[str], tmp_path: Path, service: Served) -> None:
    """Without scores, the model identity orders an unordered list by its texts alone."""
    options = ("--target", service.address, "--orders", "original,reversed,unordered", "--without-scores")
    done = evaluate(files, tmp_path / "out", "--ranker", "identity", *options)
    assert done.exit_code == 0, done.output
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    table = report.partition("Ordered and unordered lists")[2].partition("## ")[0]
    assert [name in table for name in ("| identity |", "| identity.reversed |", "| identity.unordered |")] == [
        *(True, True, False)
    ]
    trace = (tmp_path / "out" / "identity.unordered" / "trace.jsonl").read_text(encoding="utf-8")
    assert trace.count("the list is unordered") == len(GRADES)
    scored = tmp_path / "scored"
    assert evaluate(files, scored, "--ranker", "identity", *options[:-1]).exit_code == 0
    unordered, original = (measures(scored / name)["per_query"] for name in ("identity.unordered", "identity"))
    assert [unordered[query] == original[query] for query in ("q1", "q2", "q3")] == [True, False, True]  # q2 has equals


def test_identity_equals_the_first_stage_in_every_order(files: list[str], tmp_path: Path, service: Served) -> None:
    options = ("--target", service.address, "--orders", "original,reversed")
    assert evaluate(files, tmp_path / "out", "--ranker", "identity", *options).exit_code == 0
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    table = report.partition("Dependence on the first stage's order")[2].partition("## ")[0]
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in table.splitlines() if line.startswith("|")}
    assert rows["identity"] == rows["first stage"]
    assert rows["oracle"][0] == rows["oracle"][1]


def test_judgements_in_beir_form_and_ids_with_spaces(tmp_path: Path, service: Served) -> None:
    candidates = [{"_id": f"my file {rank}.pdf", "doc": f"relevance {rank}"} for rank in range(3)]
    row = {"query": {"_id": 1, "text": "q"}, "candidates": candidates}
    (tmp_path / "requests.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\tmy file 2.pdf\t1\n", encoding="utf-8")
    files = ["--requests", str(tmp_path / "requests.jsonl"), "--qrels", str(tmp_path / "test.tsv")]
    done = evaluate(files, tmp_path / "out", "--system", "best=first:number", "--target", service.address)
    assert done.exit_code == 0, done.output
    assert measures(tmp_path / "out")["mean"]["nDCG@10"] == 1
    assert "my%20file%202.pdf 1 " in (tmp_path / "out" / "run.trec").read_text(encoding="utf-8")


def test_one_system_writes_into_the_folder_itself(files: list[str], tmp_path: Path) -> None:
    """The oracle needs no service."""
    assert evaluate(files, tmp_path / "out", "--ranker", "oracle").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "measures.json",
        "report.html",
        "report.md",
        "run.trec",
        "summary.json",
        "trace.jsonl",
    ]
    written = measures(tmp_path / "out")
    assert written["missing"] == []
    assert len(written["settings"]["requests_sha256"]) == len(written["settings"]["qrels_sha256"]) == 64
    assert written["settings"]["versions"]["rerank"]


def test_scores_in_the_run_decrease_strictly(files: list[str], tmp_path: Path, service: Served) -> None:
    evaluate(files, tmp_path / "out", "--ranker", "identity", "--target", service.address)
    run = list(ir_measures.read_trec_run((tmp_path / "out" / "run.trec").read_text(encoding="utf-8")))
    for query_id, grades in GRADES.items():
        scores = [doc.score for doc in run if doc.query_id == query_id]
        assert scores == sorted(set(scores), reverse=True)
        assert len(scores) == len(grades)


def test_depth_limits_the_candidates(files: list[str], tmp_path: Path) -> None:
    evaluate(files, tmp_path / "out", "--ranker", "oracle", "--depth", 2)
    assert len((tmp_path / "out" / "run.trec").read_text(encoding="utf-8").splitlines()) == 6


def test_other_settings_in_the_same_folder_are_refused(files: list[str], tmp_path: Path) -> None:
    evaluate(files, tmp_path / "out", "--ranker", "oracle")
    again = evaluate(files, tmp_path / "out", "--ranker", "oracle", "--depth", 2)
    assert isinstance(again.exception, ConfigError)
    assert "depth: 0 there, 2 now" in str(again.exception)


def test_repeated_call_runs_no_query_again(files: list[str], tmp_path: Path) -> None:
    evaluate(files, tmp_path / "out", "--ranker", "oracle")
    before = (tmp_path / "out" / "trace.jsonl").read_bytes()
    again = evaluate(files, tmp_path / "out", "--ranker", "oracle")
    assert "oracle: resumed with 3 of 3 queries done" in again.output
    assert (tmp_path / "out" / "trace.jsonl").read_bytes() == before


def test_several_datasets_have_a_folder_each_and_a_table(files: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for option, path in zip(files[::2], files[1::2], strict=True):
        (other / Path(path).name).write_bytes(Path(path).read_bytes())
        files = [*files, option, str(other / Path(path).name)]
    done = evaluate(files, tmp_path / "out", "--ranker", "oracle")
    assert done.exit_code == 0, done.output
    assert measures(tmp_path / "out" / "other") == measures(tmp_path / "out" / tmp_path.name) | {
        "settings": measures(tmp_path / "out" / "other")["settings"]
    }
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert report.count("nDCG@10, 95 %") == 2
    assert "| oracle | 1.0000" in report


@pytest.mark.parametrize(
    ("qrels_files", "message"),
    [(0, "no judgements"), (2, "1 --requests and 2 --qrels")],
)
def test_each_request_file_needs_judgements(files: list[str], tmp_path: Path, qrels_files: int, message: str) -> None:
    done = evaluate([*files[:2], *files[2:] * qrels_files], tmp_path / "out", "--ranker", "oracle")
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)


def test_run_takes_its_texts_from_the_collection(tmp_path: Path, service: Served) -> None:
    """The ranker sorts by the number in the texts."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    rows = [f'{{"_id": "d{grade}", "text": "relevance {grade}"}}\n' for grade in range(4)]
    (folder / "corpus.jsonl").write_text("".join(rows), encoding="utf-8")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "x"}\n', encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("q\td\ts\nq\td3\t3\nq\td2\t2\n", encoding="utf-8")
    run = "".join(f"q Q0 d{grade} {grade + 1} {-grade} t\n" for grade in range(4))
    (tmp_path / "run.trec").write_text(run, encoding="utf-8")
    given = ["--requests", str(tmp_path / "run.trec"), "--collection", str(folder)]
    done = evaluate(given, tmp_path / "out", "--system", "best=first:number", "--target", service.address)
    assert done.exit_code == 0, done.output
    written = measures(tmp_path / "out")
    assert written["mean"]["nDCG@10"] == 1.0
    assert len(written["settings"]["qrels_sha256"]) == len(written["settings"]["requests_sha256"]) == 64


def test_vectors_are_read_from_the_index(beir_folder: Path, tmp_path: Path, service: Served) -> None:
    """The service's index holds the passages of `beir_folder`."""
    collection = Path(shutil.copytree(beir_folder, tmp_path / beir_folder.name))
    (collection / "qrels").mkdir()
    (collection / "queries.jsonl").write_text('{"_id": "q", "text": "fleas"}\n', encoding="utf-8")
    (collection / "qrels" / "test.tsv").write_text("q\td\ts\nq\tflea\t1\n", encoding="utf-8")
    (tmp_path / "run.trec").write_text("q Q0 moon 1 2 t\nq Q0 flea 2 1 t\n", encoding="utf-8")
    given = ["--requests", str(tmp_path / "run.trec"), "--collection", str(collection), "--target", service.address]
    assert evaluate([*given, "--index", "index"], tmp_path / "out", "--ranker", "pe-rank").exit_code == 0
    assert measures(tmp_path / "out")["settings"]["in_index"] is True
    refused = evaluate([*given, *given[:4], "--index", "index"], tmp_path / "two", "--ranker", "pe-rank")
    assert "--index has the vectors of one --collection, and there are 2" in str(refused.exception)


def test_times_at_several_loads_are_in_the_report(files: list[str], tmp_path: Path, service: Served) -> None:
    options = ("--target", service.address, "--concurrency", "1,2")
    assert evaluate(files, tmp_path / "out", "--ranker", "identity", *options).exit_code == 0
    cost = (tmp_path / "out" / "report.md").read_text(encoding="utf-8").partition("## Latency and cost")[2]
    assert "| identity | 1 |" in cost
    assert "| identity | 2 |" in cost
