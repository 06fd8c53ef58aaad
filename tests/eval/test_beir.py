"""`eval-beir` on twelve passages: over an index, over a TREC run, and with relevance feedback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rerank_eval.beir import app
from typer.testing import CliRunner, Result

from rerank.errors import ConfigError
from tests.serving import Served


@pytest.fixture
def collection(beir_folder: Path, tmp_path: Path) -> Path:
    """PASSAGES with two queries that the encoder answers correctly."""
    folder = tmp_path / "twelve"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").symlink_to(beir_folder / "corpus.jsonl")
    (folder / "queries.jsonl").write_text(
        '{"_id": "1", "text": "the pull of the moon"}\n{"_id": "2", "text": "the bite of a flea"}\n', encoding="utf-8"
    )
    (folder / "qrels" / "test.tsv").write_text("q\td\ts\n1\ttides\t1\n2\tflea-bite\t1\n", encoding="utf-8")
    return folder


def evaluate(out: Path, *options: object) -> Result:
    return CliRunner().invoke(app, ["--out", str(out), "--no-plots", *map(str, options)])


def test_candidates_of_a_run_replace_an_index(collection: Path, tmp_path: Path) -> None:
    """The oracle needs no service, and the run is the first stage."""
    (tmp_path / "run.trec").write_text("1 Q0 moon 1 2.0 t\n1 Q0 tides 2 1.0 t\n", encoding="utf-8")
    done = evaluate(tmp_path / "out", "--collection", collection, "--run", tmp_path / "run.trec", "--ranker", "oracle")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "measures.json").read_text(encoding="utf-8"))
    assert found["mean"]["nDCG@10"] == 1.0  # of the query that the run has
    assert found["missing"] == []
    assert len(found["settings"]["run_sha256"]) == 64


def test_every_model_searches_once_more_with_feedback(
    collection: Path, index_folder: Path, service: Served, tmp_path: Path
) -> None:
    given = ["--collection", collection, "--index", index_folder, "--target", service.address, "--first-stage", "dense"]
    done = evaluate(tmp_path, *given, "--ranker", "identity", "--ranker", "pe-rank", "--depth", 3, "--feedback")
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert list(summary["rows"]) == ["identity", "pe-rank", "pe-rank.feedback"]
    retriever = json.loads((tmp_path / "feedback" / "summary.json").read_text(encoding="utf-8"))
    assert list(retriever["rows"]) == ["dense", "dense after identity", "dense after pe-rank"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no source of candidates"),
        (["--index", "a", "--run", "b"], "give one of the last three for each collection"),
        (["--index", "a", "--index", "b"], "1 --collection, 2 --index"),
        (["--run", "a", "--feedback"], "needs the index; give --index"),
    ],
)
def test_each_collection_needs_one_source_of_candidates(tmp_path: Path, options: list[str], message: str) -> None:
    done = evaluate(tmp_path / "out", "--collection", tmp_path, *options)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
