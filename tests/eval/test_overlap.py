"""Data that do not belong together are refused; data that do so in part are named in table, report and JSON."""

import json
import re
from pathlib import Path

import pytest
from rerank_eval.commands import eval_beir, eval_trec_dl
from rerank_eval.overlap import notes_on_missing_relevance

from rerank.readers.qrels import Qrel
from tests.eval.data import evaluate, judged_collection, refusal, write_qrels, write_requests

NOTE = "2 of 4 judged queries were asked; means"


def requests_of(path: Path, *query_ids: str) -> Path:
    """Queries with the candidates a and b."""
    return write_requests(path, {query_id: {"a": "a", "b": "b"} for query_id in query_ids})


def collection_with(folder: Path, query_id: str) -> Path:
    """A collection of the passages a and b with one query, number 1, and judgements of `query_id`."""
    return judged_collection(folder, {"a": "a", "b": "b"}, {"1": "x"}, {query_id: {"a": 1, "b": 1}})


def test_judgements_of_other_queries_are_refused(tmp_path):
    requests = requests_of(tmp_path / "2019.jsonl", "1", "2", "3")
    qrels = write_qrels(tmp_path / "2020.txt", {"7": {"a": 1}, "8": {"b": 1}})
    error = refusal(eval_trec_dl, tmp_path / "out", "--requests", requests, "--qrels", qrels)
    assert "3 queries are asked (such as '1'), 2 are judged (such as '7')" in error
    assert "give the judgements of these queries" in error
    assert not (tmp_path / "out").exists()
    collection = collection_with(tmp_path / "collection", "5")
    error = refusal(eval_beir, tmp_path / "out", "--collection", collection, "--target", "none:1")
    assert "1 queries are asked (such as '1'), 1 are judged (such as '5')" in error


def test_every_dataset_is_checked_before_the_first_one_runs(tmp_path):
    qrels = write_qrels(tmp_path / "qrels.txt", {"1": {"a": 1}})
    good, bad = (requests_of(tmp_path / name / "requests.jsonl", query) for name, query in (("x", "1"), ("y", "2")))
    given = ["--requests", good, "--qrels", qrels, "--requests", bad, "--qrels", qrels]
    assert str(bad) in refusal(eval_trec_dl, tmp_path / "out", *given)
    assert not (tmp_path / "out").exists()


def test_queries_that_were_left_out_are_named_and_do_not_count(tmp_path, service):
    """By --queries; the third of them has no candidates, and counts as 0."""
    requests = requests_of(tmp_path / "requests.jsonl", "1", "2", "9")
    qrels = write_qrels(tmp_path / "qrels.txt", {query: {"a": 1} for query in "1234"})
    (tmp_path / "queries.tsv").write_text("1\n3\n9\n")
    given = ("--requests", requests, "--qrels", qrels, "--model", "identity", "--target", service.address)
    given += ("--queries", tmp_path / "queries.tsv")
    printed = evaluate(eval_trec_dl, tmp_path / "out", *given)
    report, measures = (
        (tmp_path / "out" / name).read_text(encoding="utf-8") for name in ("report.md", "measures.json")
    )
    unjudged = "1 of 2 queries have no judgements and are not measured: 9."
    assert "Means over 2 of 4 judged queries." in printed
    assert "Queries without candidates, which count as 0: 1 (3)." in printed
    assert all(note in text for text in (printed, report, measures) for note in (NOTE, unjudged))
    assert json.loads(measures)["mean"]["nDCG@10"] == 0.5


def test_queries_beyond_the_limit_do_not_count_as_absent(tmp_path, service):
    requests = requests_of(tmp_path / "requests.jsonl", "1", "2")
    qrels = write_qrels(tmp_path / "qrels.txt", {query: {"a": 1} for query in "123"})
    given = ("--requests", requests, "--qrels", qrels, "--model", "identity", "--target", service.address)
    printed = evaluate(eval_trec_dl, tmp_path / "out", *given, "--limit", 1)
    assert "Means over 1 of 3 judged queries." in printed
    assert "without candidates" not in printed


def test_index_of_another_collection_is_refused_before_a_service_starts(tmp_path, index_folder):
    collection = collection_with(tmp_path / "other", "1")
    error = refusal(eval_beir, tmp_path / "out", "--collection", collection, "--index", index_folder)
    assert "is an index of another collection: it has 12 passages" in error
    assert "has judgements of 2 (such as 'a'), and no doc id is in both" in error


def test_service_over_another_collection_is_refused(tmp_path, service):
    given = ["--collection", collection_with(tmp_path / "other", "1"), "--target", service.address]
    error = refusal(eval_beir, tmp_path / "out", *given, "--model", "identity")
    assert f"passages found by the service at {service.address}" in error
    assert not (tmp_path / "out" / "report.md").exists()


@pytest.mark.parametrize(
    ("grades", "rel", "note"),
    [
        ({"q": 1, "r": 1}, 1, ""),
        ({"q": 1, "r": 0}, 1, "1 of 2 measured queries have no passage of grade 1 or above and count as 0 in RR"),
        ({"q": 0, "r": 0}, 1, "None of the 2 measured queries has a passage above grade 0, so every measure is 0."),
        ({"q": 1, "r": 1}, 3, "None of the 2 measured queries has a passage of grade 3 or .*; give --rel 1 or"),
    ],
)
def test_queries_without_a_relevant_passage_are_noted(grades, rel, note):
    notes = notes_on_missing_relevance([Qrel(query_id, "a", grade) for query_id, grade in grades.items()], rel)
    assert len(notes) == bool(note)
    assert re.match(note, "".join(notes))
