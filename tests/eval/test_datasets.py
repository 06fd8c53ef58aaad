"""Datasets as the flags of the commands name them."""

from pathlib import Path

import pytest
from rerank_eval.commands import eval_beir, eval_trec_dl
from rerank_eval.datasets import _names, open_datasets
from rerank_eval.settings import BeirSettings, TrecDLSettings

from rerank.types import FirstStage, Query, ScoredDoc
from tests.eval.data import graded_requests, judged_collection, refusal, write


def test_only_judged_queries_of_a_collection_are_asked(tmp_path):
    collection = judged_collection(tmp_path / "mine", {"a": "one"}, {"1": "x", "2": "y"}, {"1": {"a": 1}})
    settings = {"collection": [str(collection)], "target": "none:1", "out": tmp_path / "out"}
    (dataset,) = open_datasets(BeirSettings(**settings, first_stage=FirstStage.BM25, depth=7))
    assert (dataset.name, dataset.queries) == ("mine", {"1": Query("x", "1")})
    assert (dataset.lists, dataset.search) == (None, {"first_stage": FirstStage.BM25, "depth": 7})
    assert dataset.title == "1 queries of mine, bm25, depth 7"


def test_document_with_the_id_of_its_query_does_not_count_in_a_collection(tmp_path):
    """As in ArguAna. Candidates in a request file are taken as they are."""
    grades, found = {"a": {"b": 1}}, {"a": [ScoredDoc("a", 2.0), ScoredDoc("b", 1.0)]}
    collection = judged_collection(tmp_path / "mine", {"a": "one", "b": "two"}, {"a": "one"}, grades)
    (dataset,) = open_datasets(BeirSettings(collection=[str(collection)], target="none:1", out=tmp_path / "out"))
    assert dataset.counted(found) == {"a": [ScoredDoc("b", 1.0)]}
    assert dataset.measure(found).mean["RR@10"] == 1.0
    _, requests, _, qrels = graded_requests(tmp_path, grades)
    (listed,) = open_datasets(TrecDLSettings(requests=[Path(requests)], qrels=[qrels], out=tmp_path / "out"))
    assert listed.measure(found).mean["RR@10"] == 0.5


def test_datasets_are_named_after_what_is_judged_and_not_after_the_folder_of_a_run(tmp_path):
    run, other, deep = tmp_path / "results" / "bm25.trec", tmp_path / "results" / "b.jsonl", tmp_path / "x" / "b.jsonl"
    (tmp_path / "cranfield").mkdir()
    files = ("dl19.qrels", "dl20/qrels.txt", "covid/qrels/test.tsv.gz")
    qrels, *others = (str(write(tmp_path / name, "q 0 a 1")) for name in files)
    collection = str(tmp_path / "cranfield")
    assert _names([run], [], [collection]) == ["cranfield"]
    assert _names([run], [qrels], [collection]) == ["cranfield"]
    assert _names([run, other], [], [collection, collection]) == ["cranfield-bm25", "cranfield-b"]
    assert _names([other], ["trec-dl-2019"], []) == ["trec-dl-2019"]
    assert _names([run, run, run], [qrels, *others], []) == ["dl19", "dl20", "covid"]
    assert _names([run, other], [qrels, qrels], []) == ["dl19-bm25", "dl19-b"]
    assert _names([deep, other], [qrels, qrels], []) == ["dl19-x", "dl19-results"]
    assert _names([Path("a/r.jsonl.gz"), Path("b/s.jsonl.gz")], [qrels, qrels], []) == ["dl19-r", "dl19-s"]


@pytest.mark.parametrize(("qrels_files", "message"), [(0, "no judgements"), (2, "1 --requests and 2 --qrels")])
def test_each_request_file_needs_judgements(tmp_path, qrels_files, message):
    given = ["--requests", "r.jsonl", *["--qrels", "qrels.txt"] * qrels_files]
    assert message in refusal(eval_trec_dl, tmp_path / "out", *given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no source of candidates: give --index DIR for each collection"),
        (["--index", "a", "--index", "b"], "1 --collection, 2 --index"),
        (["--target", "a:1", "--feedback"], "--feedback searches the index with the changed query vectors"),
    ],
)
def test_each_collection_needs_one_source_of_candidates(tmp_path, options, message):
    assert message in refusal(eval_beir, tmp_path / "out", "--collection", tmp_path, *options)
