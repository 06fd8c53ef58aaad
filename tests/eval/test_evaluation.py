"""Evaluations with a service whose results are known: its ranker sorts by the number in the text."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

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
    """Flags of a request file, its judgements, and the queries that are asked."""
    asked = write(tmp_path / "asked.txt", *ASKED)
    return [*graded_requests(tmp_path, GRADES, ASKED), "--queries", str(asked)]


class Evaluated(Protocol):
    """Evaluates models of a running service, by default "number", and returns what is printed."""

    def __call__(self, out: Path, *flags: object, models: Sequence[str] = ("number",)) -> str: ...


@pytest.fixture
def evaluated(service: Served) -> Evaluated:
    def evaluated(out: Path, *flags: object, models: Sequence[str] = ("number",)) -> str:
        named = [word for model in models for word in ("--model", model)]
        return evaluate(eval_trec_dl, out, *flags, *named, "--target", service.address)

    return evaluated


def measures(folder: Path) -> Any:
    return read_json(folder / "measures.json")


def report(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


def columns(run: Path, *places: int) -> list[list[str]]:
    """The columns of a TREC run, without those whose places are not given."""
    rows = [line.split() for line in run.read_text(encoding="utf-8").splitlines()]
    return [[row[place] for place in places] for row in rows]


def test_perfect_ranker_is_perfect_and_identity_is_the_first_stage(files, tmp_path, evaluated):
    """The trace holds positions of the first stage, whose run is written."""
    out = tmp_path / "out"
    evaluated(out, *files, "--concurrency", 2, models=("best=number", "identity"))
    means = {name: row[0] for name, row in rows(report(out), "Means over").items()}
    assert measures(out / "best")["mean"]["nDCG@10"] == pytest.approx(1.0)
    assert means["identity"] == means["first stage"]
    assert columns(out / "first-stage.trec", 0, 2, 3) == columns(out / "identity" / "run.trec", 0, 2, 3)
    trace = [json.loads(line) for line in (out / "best" / "trace.jsonl").read_text().splitlines()[1:]]
    assert [row["query_id"] for row in trace] == list(ASKED)
    assert trace[0]["positions"] == [3, 2, 1, 0]
    assert trace[0]["execution"]["windows"] == 1


def test_qrels_may_encode_spaces_and_our_run_is_read_back(tmp_path, evaluated):
    """Undecoded, "HELP%201" would be another passage than "HELP 1", and the measures would fall silently.

    The texts of the run are the collection's, whose numbers the ranker sorts by.
    """
    texts = {"HELP 1": "1", "HELP 2": "0", "plain": "2"}
    requests = write_requests(tmp_path / "requests.jsonl", {"q 1": texts})
    qrels = write(tmp_path / "qrels.txt", "q%201 0 HELP%201 1", "q%201 0 plain 2")
    assert "not among the candidates" not in evaluated(tmp_path / "out", "--requests", requests, "--qrels", qrels)
    assert measures(tmp_path / "out")["mean"]["nDCG@10"] == 1
    turned = {"HELP 1": "2", "HELP 2": "0", "plain": "1"}
    collection = judged_collection(tmp_path / "mine", turned, {"q 1": "what"}, {})
    (collection / "qrels" / "test.tsv").write_bytes(qrels.read_bytes())
    evaluated(tmp_path / "back", "--requests", tmp_path / "out" / "run.trec", "--collection", collection)
    found = columns(tmp_path / "back" / "run.trec", 0, 2)
    assert found == [["q%201", "HELP%201"], ["q%201", "plain"], ["q%201", "HELP%202"]]
    written = measures(tmp_path / "back")
    assert written["per_query"]["q 1"]["R@100"] == 1
    assert len(written["settings"]["qrels_sha256"]) == len(written["settings"]["requests_sha256"]) == 64


def test_pairs_without_a_candidate_are_those_of_the_measures(tmp_path, evaluated):
    """A passage that two queries need is two pairs, and grade 1 does not count where R counts grade 2."""
    requests = write_requests(tmp_path / "requests.jsonl", {q: {"a": "a", "b": "b"} for q in ("q", "r")})
    qrels = write_qrels(tmp_path / "qrels.txt", {q: {"a": 3, "x": 2, "y": 1} for q in ("q", "r")})
    given = ("--requests", requests, "--qrels", qrels)
    evaluated(tmp_path / "out", *given)
    (note,) = measures(tmp_path / "out")["notes"]
    assert note.startswith("2 of 4 relevant query-passage pairs (grade 2 and above) are not among the candidates")
    assert measures(tmp_path / "out")["mean"]["R(rel=2)@100"] == 0.5
    assert "RR, AP and R count grade 2 and above as relevant" in report(tmp_path / "out")
    evaluated(tmp_path / "all", *given, "--rel", 1)
    assert measures(tmp_path / "all")["notes"][0].startswith("4 of 6 relevant query-passage pairs are not")


def with_changed_query(files: list[str], **changed: object) -> list[str]:
    """The flags, after fields of q2 in the request file were replaced."""
    path = Path(files[1])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines[1].update(changed)
    write(path, *map(json.dumps, lines))
    return files


def test_query_without_candidates_counts_as_0_with_a_note(files, tmp_path, evaluated):
    evaluated(tmp_path / "out", *with_changed_query(files, candidates=[]))
    written = measures(tmp_path / "out")
    assert [written["per_query"][query]["nDCG@10"] for query in ASKED] == [1.0, 0.0, 1.0]
    assert "Queries without candidates, which count as 0: 1 (q2)." in written["notes"]


@pytest.mark.parametrize("text", ["", " ", "\x00\x1b"])
def test_query_without_text_counts_for_neither_the_system_nor_the_first_stage(files, tmp_path, evaluated, text):
    """No system is asked, so it would have 0 where the first stage has the measure of its order."""
    evaluated(tmp_path / "out", *with_changed_query(files, query={"qid": "q2", "text": text}), models=["identity"])
    written = measures(tmp_path / "out")
    assert list(written["per_query"]) == ["q1", "q3"]
    assert "Queries without text, which are not asked and not measured: 1 (q2)." in written["notes"]
    means = rows(report(tmp_path / "out"), "Means over")
    assert means["identity"] == means["first stage"]
    none = write_requests(tmp_path / "none.jsonl", {"q2": {"d0": "1"}})
    write(none, none.read_text(encoding="utf-8").replace("what is q2", " "))
    error = refusal(eval_trec_dl, tmp_path / "none", "--requests", none, *files[2:])
    assert error == "none of the 1 queries has a text; give queries with texts"


def test_second_evaluation_with_the_same_flags_changes_no_file(files, tmp_path, evaluated):
    out, models = tmp_path / "out", ("number", "identity")
    evaluated(out, *files, models=models)
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    assert "the one before it" not in evaluated(out, *files, models=models)
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == before


def test_queries_are_chosen_by_a_file_and_a_limit(files, tmp_path, evaluated):
    evaluated(tmp_path / "limit", *files, "--limit", 2)
    assert list(measures(tmp_path / "limit")["per_query"]) == ["q1", "q2"]
    ids = write(tmp_path / "ids.txt", "q3", "", "q1", "q9")
    printed = evaluated(tmp_path / "ids", *files, "--queries", ids)
    assert list(measures(tmp_path / "ids")["per_query"]) == ["q1", "q3"]
    assert "1 of 3 queries of" in printed
    other = write(tmp_path / "other.tsv", "7\twhy")
    assert "names none of the 3 queries" in refusal(eval_trec_dl, tmp_path / "none", *files, "--queries", other)


def test_several_datasets_have_a_folder_each_and_a_table(files, tmp_path, evaluated):
    out = tmp_path / "out"
    evaluated(out, *files, *graded_requests(tmp_path / "other", GRADES, ASKED))
    other = measures(out / "other")
    assert other == measures(out / tmp_path.name) | {"settings": other["settings"]}
    assert rows(report(out), "2 datasets")["number"] == ["1.0000", "1.0000", "1.0000"]
    assert {"table.tex", "table.csv"} <= {path.name for path in out.iterdir()}


def test_service_with_the_index_is_started_for_a_search(beir_folder, index_folder, service, tmp_path, monkeypatch):
    """By default with the default model. The service that answers runs already, which is quicker."""
    queries = {"1": "the pull of the moon", "2": "the bite of a flea"}
    grades = {"1": {"tides": 1}, "2": {"flea-bite": 1}}
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


@pytest.mark.parametrize("is_run", [False, True], ids=["request file", "run over a collection"])
def test_every_statistic_is_over_all_judged_queries_and_one_without_candidates_counts_as_0(tmp_path, evaluated, is_run):
    """10 of 14 judged queries have candidates, with a number near the grade; by scipy from the files of the systems."""
    rng = random.Random(3)
    grades = {f"q{n:02d}": {f"d{n}-{rank}": rng.choice([0, 0, 1, 2, 3]) for rank in range(6)} for n in range(14)}
    asked = list(grades)[:10]
    texts = {q: {d: f"relevance {grade + rng.randint(0, 2)}" for d, grade in row.items()} for q, row in grades.items()}
    if is_run:
        corpus = {doc_id: text for row in texts.values() for doc_id, text in row.items()}
        collection = judged_collection(tmp_path / "collection", corpus, {q: q for q in grades}, grades)
        run = {q: list(grades[q]) for q in asked} | {"unjudged": ["d0-0"]}
        files = ["--requests", write_run(tmp_path / "run.trec", run)]
        files += ["--collection", collection]
    else:
        lists = {q: texts[q] for q in asked} | {"unjudged": {"d0-0": "1"}}
        files = ["--requests", write_requests(tmp_path / "requests.jsonl", lists)]
        files += ["--qrels", write_qrels(tmp_path / "qrels.txt", grades)]
    out = tmp_path / "out"
    printed = evaluated(out, *files, models=("identity", "number"))

    runs = (columns(out / name / "run.trec", 0, 2) for name in ("number", "identity"))
    system, reference = ([ndcg(grades[q], [d for asked, d in run if asked == q]) for q in grades] for run in runs)
    differences = [value - other for value, other in zip(system, reference, strict=True)]
    t_test = stats.ttest_rel(system, reference)
    low, high = t_test.confidence_interval(0.95)
    signs = [sum(sign) for sign in zip(*((d > 1e-9, abs(d) <= 1e-9, d < -1e-9) for d in differences), strict=True)]
    text = report(out)
    cells = rows(text, "compared with identity")["number"]
    assert cells[:3] == [f"{fmean(differences):+.4f}", f"{low:+.4f} to {high:+.4f}", f"{t_test.pvalue:.4f}"]
    assert cells[3] == "/".join(map(str, signs))
    assert f"| number | {cells[0]} | {cells[1]} |" in printed
    assert rows(text, "Means over 14 of 14 judged queries")["first stage"][0] == f"{fmean(reference):.4f}"
    assert "t-test over 14 queries" in text
    assert "Queries without candidates, which count as 0: 4 (q10, q11, q12, q13)." in printed
    assert "1 of 11 queries have no judgements and are not measured: unjudged." in printed
    assert measures(out / "number")["mean"]["nDCG@10"] == pytest.approx(fmean(system))
