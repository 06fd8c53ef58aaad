"""Evaluations with a service whose results are known: its ranker sorts by the number in the text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rerank_eval.commands import eval_beir, eval_trec_dl
from scipy import stats

from rerank.config import ServiceConfig
from tests.eval.data import (
    call,
    evaluate,
    graded_requests,
    judged_collection,
    read_json,
    refusal,
    write,
    write_qrels,
    write_requests,
    write_run,
)
from tests.eval.test_measures import ndcg
from tests.eval.test_report import rows
from tests.serving import Served

#: Grades of the candidates in first-stage order; no request asks for q4.
GRADES = {
    "q1": {"d0": 0, "d1": 1, "d2": 2, "d3": 3},
    "q2": {"d0": 1, "d1": 0, "d2": 3, "d3": 0},
    "q3": {"d0": 3, "d1": 2, "d2": 0, "d3": 1},
    "q4": {"d0": 1},
}
ASKED = ("q1", "q2", "q3")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Flags of a request file and its judgements."""
    return graded_requests(tmp_path, GRADES, ASKED)


def measures(folder: Path) -> Any:
    return read_json(folder / "measures.json")


def report(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


def test_perfect_ranker_is_perfect_and_identity_is_the_first_stage(
    files: list[str], tmp_path: Path, service: Served
) -> None:
    """The trace holds positions of the first stage."""
    out = tmp_path / "out"
    options = ("--target", service.address, "--concurrency", 2)
    evaluate(eval_trec_dl, out, *files, "--model", "best=number", "--model", "identity", *options)
    means = {name: row[0] for name, row in rows(report(out), "Means over").items()}
    assert measures(out / "best")["mean"]["nDCG@10"] == pytest.approx(1.0)
    assert means["identity"] == means["first stage"]
    trace = [json.loads(line) for line in (out / "best" / "trace.jsonl").read_text().splitlines()[1:]]
    assert [row["query_id"] for row in trace] == list(ASKED)
    assert trace[0]["positions"] == [3, 2, 1, 0]
    assert trace[0]["execution"]["windows"] == 1


def test_qrels_may_encode_spaces_and_our_run_is_read_back(tmp_path: Path, service: Served) -> None:
    """Undecoded, "HELP%201" would be another passage than "HELP 1", and the measures would fall silently."""
    texts = {"HELP 1": "1", "HELP 2": "0", "plain": "2"}
    requests = write_requests(tmp_path / "requests.jsonl", {"q 1": texts})
    qrels = write(tmp_path / "qrels.txt", "q%201 0 HELP%201 1", "q%201 0 plain 2")
    given = ("--requests", requests, "--qrels", qrels, "--model", "number", "--target", service.address)
    assert "not among the candidates" not in evaluate(eval_trec_dl, tmp_path / "out", *given)
    assert measures(tmp_path / "out")["mean"]["nDCG@10"] == 1
    collection = judged_collection(tmp_path / "mine", texts, {"q 1": "what"}, {"q 1": {"HELP 1": 1, "plain": 2}})
    (collection / "qrels" / "test.tsv").write_text(qrels.read_text(encoding="utf-8"), encoding="utf-8")
    back = ("--requests", tmp_path / "out" / "run.trec", "--collection", collection, "--model", "identity")
    evaluate(eval_trec_dl, tmp_path / "back", *back, "--target", service.address)
    assert measures(tmp_path / "back")["per_query"]["q 1"]["nDCG@10"] == 1


@pytest.mark.parametrize(
    ("grades", "given", "names"),
    [
        ({"a": 1, "b": 0}, (), ["RR@10", "AP@100", "R@100"]),
        ({"a": 2, "b": 1}, (), ["RR@10", "AP@100", "R@100"]),
        ({"a": 3, "b": 2, "c": 1}, (), ["RR(rel=2)@10", "AP(rel=2)@100", "R(rel=2)@100"]),
        ({"a": 3, **dict.fromkeys("bcdefgh", 1)}, (), ["RR@10", "AP@100", "R@100"]),
        ({"a": 5, "b": 3}, (), ["RR@10", "AP@100", "R@100"]),
        ({"a": 2, "b": 1}, ("--rel", 1), ["RR@10", "AP@100", "R@100"]),
        ({"a": 3, "b": 1}, ("--rel", 3), ["RR(rel=3)@10", "AP(rel=3)@100", "R(rel=3)@100"]),
    ],
)
def test_least_relevant_grade_follows_the_judgements(
    tmp_path: Path, service: Served, grades: dict[str, int], given: tuple[object, ...], names: list[str]
) -> None:
    """Grade 2 on the scale of TREC Deep Learning; one high grade among many of 1 does not make that scale."""
    files = graded_requests(tmp_path, {"q": grades})
    evaluate(eval_trec_dl, tmp_path / "out", *files, "--model", "number", "--target", service.address, *given)
    mean = measures(tmp_path / "out")["mean"]
    assert [mean[name] for name in names] == [1.0, 1.0, 1.0]
    rel = names[0][7] if "rel" in names[0] else 1
    assert f"RR, AP and R count grade {rel} and above as relevant" in report(tmp_path / "out")


def test_pairs_without_a_candidate_are_those_of_the_measures(tmp_path: Path, service: Served) -> None:
    """A passage that two queries need is two pairs, and grade 1 does not count where R counts grade 2."""
    requests = write_requests(tmp_path / "requests.jsonl", {q: {"a": "a", "b": "b"} for q in ("q", "r")})
    qrels = write_qrels(tmp_path / "qrels.txt", {q: {"a": 3, "x": 2, "y": 1} for q in ("q", "r")})
    given = ("--requests", requests, "--qrels", qrels, "--model", "identity", "--target", service.address)
    evaluate(eval_trec_dl, tmp_path / "out", *given)
    (note,) = measures(tmp_path / "out")["notes"]
    assert note.startswith("2 of 4 relevant query-passage pairs (grade 2 and above) are not among the candidates")
    assert measures(tmp_path / "out")["mean"]["R(rel=2)@100"] == 0.5
    evaluate(eval_trec_dl, tmp_path / "all", *given, "--rel", 1)
    assert measures(tmp_path / "all")["notes"][0].startswith("4 of 6 relevant query-passage pairs are not")


def with_changed_query(files: list[str], **changed: object) -> list[str]:
    """The flags, after fields of q2 in the request file were replaced."""
    path = Path(files[1])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines[1].update(changed)
    write(path, *map(json.dumps, lines))
    return files


def test_query_without_candidates_counts_as_0_with_a_note(files: list[str], tmp_path: Path, service: Served) -> None:
    given = (*with_changed_query(files, candidates=[]), "--model", "number", "--target", service.address)
    evaluate(eval_trec_dl, tmp_path / "out", *given)
    written = measures(tmp_path / "out")
    assert [written["per_query"][query]["nDCG@10"] for query in ASKED] == [1.0, 0.0, 1.0]
    assert "Queries without candidates, which count as 0: 1 (q2)." in written["notes"]


@pytest.mark.parametrize("text", ["", " ", "\x00\x1b"])
def test_query_without_text_counts_for_neither_the_system_nor_the_first_stage(
    files: list[str], tmp_path: Path, service: Served, text: str
) -> None:
    """No system is asked, so it would have 0 where the first stage has the measure of its order."""
    given = with_changed_query(files, query={"qid": "q2", "text": text})
    evaluate(eval_trec_dl, tmp_path / "out", *given, "--model", "identity", "--target", service.address)
    written = measures(tmp_path / "out")
    assert list(written["per_query"]) == ["q1", "q3"]
    assert "Queries without text, which are not asked and not measured: 1 (q2)." in written["notes"]
    means = rows(report(tmp_path / "out"), "Means over")
    assert means["identity"] == means["first stage"]
    none = write_requests(tmp_path / "none.jsonl", {"q2": {"d0": "1"}})
    write(none, none.read_text(encoding="utf-8").replace("what is q2", " "))
    error = refusal(eval_trec_dl, tmp_path / "none", "--requests", none, *given[2:], "--target", service.address)
    assert error == "none of the 1 queries has a text; give queries with texts"


@pytest.mark.parametrize(
    ("grades", "rel", "note"),
    [
        ({"q": {"a": 1}, "r": {"a": 1}}, (), ""),
        ({"q": {"a": 1}, "r": {"a": 0}}, (), "1 of 2 measured queries have no passage of grade 1 or above and count"),
        ({"q": {"a": 0}, "r": {"a": 0}}, (), "None of the 2 measured queries has a passage above grade 0, so every"),
        (
            {"q": {"a": 1}, "r": {"a": 1}, "other": {"b": 3}},
            ("--rel", 3),
            "None of the 2 measured queries has a passage of grade 3 or above, so RR, AP and R are 0; give --rel 1 or",
        ),
    ],
)
def test_queries_without_a_relevant_passage_are_noted(
    tmp_path: Path, service: Served, grades: dict[str, dict[str, int]], rel: tuple[object, ...], note: str
) -> None:
    files = graded_requests(tmp_path, grades, ("q", "r"))
    printed = evaluate(eval_trec_dl, tmp_path / "out", *files, *rel, "--model", "identity", "--target", service.address)
    assert (note in printed) if note else ("relevant passage" not in printed and "count as 0" not in printed)


def test_run_of_the_first_stage_is_written(files: list[str], tmp_path: Path, service: Served) -> None:
    given = ("--model", "identity", "--model", "number", "--target", service.address)
    evaluate(eval_trec_dl, tmp_path / "out", *files, *given)
    first_stage, identity = (tmp_path / "out" / name for name in ("first-stage.trec", "identity/run.trec"))
    columns = [[line.split()[place] for line in first_stage.read_text().splitlines()] for place in (0, 2, 3)]
    assert columns == [[line.split()[place] for line in identity.read_text().splitlines()] for place in (0, 2, 3)]


def test_results_of_a_second_evaluation_stand_beside_those_of_the_first(
    files: list[str], tmp_path: Path, service: Served
) -> None:
    out, given = tmp_path / "out", ("--target", service.address)
    evaluate(eval_trec_dl, out, *files, "--model", "number", "--model", "identity", *given)
    before = report(out)
    again = evaluate(eval_trec_dl, out, *files, "--model", "number", "--model", "identity", *given)
    assert not list(out.glob("**/*-1.*"))
    assert "the one before it" not in again
    printed = evaluate(eval_trec_dl, out, *files, "--model", "other=number", "--model", "identity", *given)
    assert (out / "report-1.md").read_text(encoding="utf-8") == before
    assert "other" in report(out)
    assert f"the one before it is {out / 'report-1.md'}" in printed


def test_queries_are_chosen_by_a_file_and_a_limit(files: list[str], tmp_path: Path, service: Served) -> None:
    given = (*files, "--model", "identity", "--target", service.address)
    evaluate(eval_trec_dl, tmp_path / "limit", *given, "--limit", 2)
    assert list(measures(tmp_path / "limit")["per_query"]) == ["q1", "q2"]
    ids = write(tmp_path / "ids.txt", "q3", "", "q1", "q9")
    printed = evaluate(eval_trec_dl, tmp_path / "ids", *given, "--queries", ids)
    assert list(measures(tmp_path / "ids")["per_query"]) == ["q1", "q3"]
    assert "1 of 3 queries of" in printed
    assert "names none of the 3 queries" in refusal(
        eval_trec_dl, tmp_path / "none", *given, "--queries", write(tmp_path / "other.tsv", "7\twhy")
    )


def test_several_datasets_have_a_folder_each_and_a_table(files: list[str], tmp_path: Path, service: Served) -> None:
    out = tmp_path / "out"
    given = ("--model", "number", "--target", service.address)
    evaluate(eval_trec_dl, out, *files, *graded_requests(tmp_path / "other", GRADES, ASKED), *given)
    other = measures(out / "other")
    assert other == measures(out / tmp_path.name) | {"settings": other["settings"]}
    assert rows(report(out), "2 datasets")["number"] == ["1.0000", "1.0000", "1.0000"]
    assert {"table.tex", "table.csv"} <= {path.name for path in out.iterdir()}


def test_run_takes_its_texts_from_the_collection(tmp_path: Path, service: Served) -> None:
    """The ranker sorts by the number in the texts."""
    texts = {f"d{grade}": f"relevance {grade}" for grade in range(4)}
    collection = judged_collection(tmp_path / "beir", texts, {"q": "x"}, {"q": {"d3": 3, "d2": 2}})
    given = ("--requests", write_run(tmp_path / "run.trec", {"q": list(texts)}), "--collection", collection)
    evaluate(eval_trec_dl, tmp_path / "out", *given, "--model", "best=number", "--target", service.address)
    written = measures(tmp_path / "out")
    assert written["mean"]["nDCG@10"] == 1.0
    assert len(written["settings"]["qrels_sha256"]) == len(written["settings"]["requests_sha256"]) == 64


def test_service_with_the_index_is_started_for_a_search(
    beir_folder: Path, index_folder: Path, service: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default with the default model. The service that answers runs already, which is quicker."""
    queries, grades = (
        {"1": "the pull of the moon", "2": "the bite of a flea"},
        {"1": {"tides": 1}, "2": {"flea-bite": 1}},
    )
    collection = judged_collection(tmp_path / "twelve", beir_folder / "corpus.jsonl", queries, grades)
    started: list[ServiceConfig] = []

    @contextmanager
    def running_service(config: ServiceConfig) -> Iterator[str]:
        started.append(config)
        yield service.address

    monkeypatch.setattr("rerank_eval.systems.service_process", running_service)
    out = tmp_path / "out"
    printed = call(eval_beir, out, "--collection", collection, "--index", index_folder).output
    (config,) = started
    assert config.index == index_folder
    assert [(model.name, model.ranker) for model in config.models] == [("default", "fusion")]
    measures = read_json(out / "measures.json")
    assert measures["mean"]["R@100"] == 1.0
    assert measures["settings"]["ranker"] == "pe-rank"
    assert len((out / "run.trec").read_text(encoding="utf-8").splitlines()) == 2 * 12
    assert {path.name for path in out.iterdir()} >= {"report.md", "measures.json"}
    assert "nDCG@10" in printed


# --- every statistic is over the queries that were asked, when the judgements are of more queries


def run_of(path: Path) -> dict[str, list[str]]:
    """The documents of a TREC run, best first."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        query_id, _, doc_id, *_ = line.split()
        found.setdefault(query_id, []).append(doc_id)
    return found


@pytest.mark.parametrize("is_run", [False, True], ids=["request file", "run over a collection"])
def test_tests_are_over_the_queries_that_were_asked(tmp_path: Path, service: Served, is_run: bool) -> None:
    """10 of 53 judged queries, whose texts have a number near the grade; by scipy from the files of the systems."""
    rng = random.Random(3)
    grades = {f"q{n:02d}": {f"d{n}-{rank}": rng.choice([0, 0, 1, 2, 3]) for rank in range(6)} for n in range(53)}
    asked = list(grades)[:10]
    texts = {
        q: {doc_id: f"relevance {grade + rng.randint(0, 2)}" for doc_id, grade in row.items()}
        for q, row in grades.items()
    }
    if is_run:
        corpus = {doc_id: text for row in texts.values() for doc_id, text in row.items()}
        collection = judged_collection(tmp_path / "collection", corpus, {q: q for q in grades}, grades)
        files = ["--requests", write_run(tmp_path / "run.trec", {q: list(grades[q]) for q in asked})]
        files += ["--collection", collection]
    else:
        files = ["--requests", write_requests(tmp_path / "requests.jsonl", {q: texts[q] for q in asked})]
        files += ["--qrels", write_qrels(tmp_path / "qrels.txt", grades)]
    out = tmp_path / "out"
    systems = ("--model", "identity", "--model", "number", "--target", service.address)
    printed = evaluate(eval_trec_dl, out, *files, *systems)

    runs = {name: run_of(out / name / "run.trec") for name in ("identity", "number")}
    system, reference = ([ndcg(grades[q], runs[name][q]) for q in asked] for name in ("number", "identity"))
    differences = [value - other for value, other in zip(system, reference, strict=True)]
    t_test = stats.ttest_rel(system, reference)
    low, high = t_test.confidence_interval(0.95)
    signs = [sum(sign) for sign in zip(*((d > 1e-9, abs(d) <= 1e-9, d < -1e-9) for d in differences), strict=True)]
    text = report(out)
    cells = rows(text, "compared with identity")["number"]
    assert cells[:3] == [f"{fmean(differences):+.4f}", f"{low:+.4f} to {high:+.4f}", f"{t_test.pvalue:.4f}"]
    assert cells[3] == "/".join(map(str, signs))
    assert f"| number | {cells[0]} | {cells[1]} |" in printed
    assert rows(text, "Means over 10 judged queries")["first stage"][0] == f"{fmean(reference):.4f}"
    assert "t-test over 10 queries" in text
    assert "10 of 53 judged queries were asked; means and tests are over these." in printed
    assert measures(out / "number")["mean"]["nDCG@10"] == pytest.approx(fmean(system))
    assert len(measures(out / "number")["settings"]["requests_sha256"]) == 64
