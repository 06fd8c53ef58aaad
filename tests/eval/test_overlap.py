"""Data that do not belong together are refused; data that do so in part are named in table, report and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ir_measures import Qrel
from rerank_eval import beir, trec_dl
from rerank_eval.datasets import open_dataset
from rerank_eval.overlap import check_index, check_names, judgements_of
from typer.testing import CliRunner, Result

from rerank.errors import CollectionError
from rerank.readers.qrels import read_qrels
from tests.eval.test_commands import run_command
from tests.serving import Served

NOTE = "2 of 4 judged queries were asked; means"


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def requests_of(path: Path, *query_ids: str) -> Path:
    """Queries with the candidates a and b."""
    docs = [{"docid": doc_id, "score": 1.0, "doc": doc_id} for doc_id in ("a", "b")]
    return write(path, *(json.dumps({"query": {"text": "x", "qid": q}, "candidates": docs}) for q in query_ids))


def evaluate(out: Path, *options: object) -> Result:
    arguments = ["--ranker", "oracle", "--no-plots", "--out", str(out), *map(str, options)]
    return CliRunner().invoke(trec_dl.app, arguments)


def test_judgements_of_other_queries_end_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    requests = requests_of(tmp_path / "2019.jsonl", "1", "2", "3")
    qrels = write(tmp_path / "2020.txt", "7 0 a 1", "8 0 b 1")
    arguments = ("--requests", requests, "--qrels", qrels, "--ranker", "oracle", "--out", tmp_path / "out")
    assert run_command(monkeypatch, trec_dl.main, *arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "3 queries are asked (such as '1'), 2 are judged (such as '7')" in error
    assert "give the judgements of these queries" in error
    assert not (tmp_path / "out").exists()


def test_candidates_that_nobody_judged_are_refused(tmp_path: Path) -> None:
    requests = requests_of(tmp_path / "requests.jsonl", "1")
    qrels = write(tmp_path / "qrels.txt", "1 0 x 1", "1 0 y 1", "1 0 z 0")
    done = evaluate(tmp_path / "out", "--requests", requests, "--qrels", qrels)
    assert isinstance(done.exception, CollectionError)
    assert "nothing can be measured: 2 candidates of" in str(done.exception)
    assert "3 judged passages (such as 'x')" in str(done.exception)


def test_every_dataset_is_checked_before_the_first_one_runs(tmp_path: Path) -> None:
    qrels = write(tmp_path / "qrels.txt", "1 0 a 1")
    good, bad = (requests_of(tmp_path / name / "requests.jsonl", query) for name, query in (("x", "1"), ("y", "2")))
    given = ["--requests", good, "--qrels", qrels, "--requests", bad, "--qrels", qrels]
    done = evaluate(tmp_path / "out", *given)
    assert isinstance(done.exception, CollectionError)
    assert str(bad) in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "mean", "over"), [((), 1.0, 2), (("--only-asked",), 1.0, 2), (("--all-judged",), 0.5, 4)]
)
def test_queries_that_were_not_asked_are_named(tmp_path: Path, option: tuple[str, ...], mean: float, over: int) -> None:
    requests = requests_of(tmp_path / "requests.jsonl", "1", "2", "9")
    qrels = write(tmp_path / "qrels.txt", *(f"{query} 0 a 1" for query in "1234"))
    done = evaluate(tmp_path / "out", "--requests", requests, "--qrels", qrels, *option)
    assert done.exit_code == 0, done.output
    report, summary, measures = (
        (tmp_path / "out" / name).read_text(encoding="utf-8") for name in ("report.md", "summary.json", "measures.json")
    )
    assert all(NOTE in text for text in (done.output, report, summary, measures))
    unjudged = "1 of 3 queries have no judgements and are not measured: 9."
    assert all(unjudged in text for text in (done.output, report, summary, measures))
    assert json.loads(measures)["mean"]["nDCG@10"] == mean
    assert json.loads(summary)["queries"] == over


def test_queries_of_a_run_without_judgements_are_named(tmp_path: Path) -> None:
    collection = beir_folder_with(tmp_path / "one", "1", "a", "b")
    run = write(tmp_path / "run.trec", "1 Q0 a 1 2.0 t", "1 Q0 b 2 1.0 t", "8 Q0 a 1 1.0 t", "9 Q0 b 1 1.0 t")
    note = "2 of 3 queries have no judgements and are not measured: 8, 9."
    done = evaluate(tmp_path / "reranked", "--requests", run, "--collection", collection)
    assert note in done.output
    given = ["--collection", collection, "--run", run, "--ranker", "oracle", "--no-plots", "--out", tmp_path / "beir"]
    assert note in CliRunner().invoke(beir.app, [*map(str, given)]).output


def test_long_lists_of_queries_without_judgements_are_cut() -> None:
    (note,) = judgements_of(["1", *(f"x{number:02d}" for number in range(30))], [Qrel("1", "a", 1)], "x").notes
    assert note.endswith("not measured: " + ", ".join(f"x{number:02d}" for number in range(20)) + " and others.")


def test_complete_data_need_no_note(tmp_path: Path) -> None:
    qrels = read_qrels(write(tmp_path / "qrels.txt", "1 0 a 1", "2 0 a 1"))
    judgements = judgements_of(["1", "2"], qrels, "x")
    assert (judgements.qrels, judgements.notes) == (qrels, ())


def beir_folder_with(folder: Path, query_id: str, *doc_ids: str) -> Path:
    """A collection of the passages `doc_ids` with one query, number 1, and judgements of `query_id`."""
    write(folder / "corpus.jsonl", *(json.dumps({"_id": doc_id, "text": doc_id}) for doc_id in doc_ids))
    write(folder / "queries.jsonl", '{"_id": "1", "text": "x"}')
    write(folder / "qrels" / "test.tsv", "q\td\ts", *(f"{query_id}\t{doc_id}\t1" for doc_id in doc_ids))
    return folder


def test_collection_with_judgements_of_other_queries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"1 queries are asked \(such as '1'\), 1 are judged \(such as '5'\)"):
        open_dataset(str(beir_folder_with(tmp_path, "5", "a")))


def test_index_of_another_collection_is_refused_before_a_service_starts(tmp_path: Path, index_folder: Path) -> None:
    collection = beir_folder_with(tmp_path / "other", "1", "a", "b")
    arguments = ["--collection", collection, "--index", index_folder, "--no-plots", "--out", tmp_path / "out"]
    done = CliRunner().invoke(beir.app, [*map(str, arguments)])
    assert isinstance(done.exception, CollectionError)
    assert "is an index of another collection: it has 12 passages" in str(done.exception)
    assert "has judgements of 2 (such as 'a'), and no doc id is in both" in str(done.exception)


def test_service_over_another_collection_is_refused(tmp_path: Path, service: Served) -> None:
    collection = beir_folder_with(tmp_path / "other", "1", "a", "b")
    given = ["--collection", collection, "--target", service.address, "--ranker", "identity", "--out", tmp_path / "out"]
    done = CliRunner().invoke(beir.app, [*map(str, given), "--no-plots"])
    assert isinstance(done.exception, CollectionError)
    assert f"passages found by the service at {service.address}" in str(done.exception)
    assert not (tmp_path / "out" / "report.md").exists()


@pytest.mark.parametrize(("dataset", "is_named"), [("twelve", False), ("beir/twelve/test", False), ("cranfield", True)])
def test_index_of_a_collection_with_another_name_is_named(dataset: str, is_named: bool) -> None:
    """Numbers as doc_ids occur in many collections."""
    notes = check_names({"collection": "twelve", "passages": "12"}, dataset)
    assert notes == () or notes[0].startswith(
        f"The index is of a collection named twelve, the judgements are of {dataset}"
    )
    assert bool(notes) == is_named


def test_index_that_lacks_judged_passages_is_named(tmp_path: Path, index_folder: Path) -> None:
    qrels = read_qrels(write(tmp_path / "qrels.txt", "1 0 moon 1", "1 0 b 1"))
    assert check_index(index_folder, qrels, "x") == (
        "1 of 2 judged passages are in the index; the others cannot be found.",
    )
