"""`eval-beir` on twelve passages: over an index, and with relevance feedback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rerank_eval.commands import eval_beir

from rerank.config import ServiceConfig
from tests.eval.data import call, judged_collection, read_json, refusal
from tests.serving import Served


@pytest.fixture
def collection(beir_folder: Path, tmp_path: Path) -> Path:
    """PASSAGES with two queries that the encoder answers correctly."""
    queries = {"1": "the pull of the moon", "2": "the bite of a flea"}
    grades = {"1": {"tides": 1}, "2": {"flea-bite": 1}}
    return judged_collection(tmp_path / "twelve", beir_folder / "corpus.jsonl", queries, grades)


def test_service_with_the_index_is_started_for_a_search(
    collection: Path, index_folder: Path, service: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default with the default model. The service that answers runs already, which is quicker."""
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no source of candidates: give --index DIR for each collection"),
        (["--index", "a", "--index", "b"], "1 --collection, 2 --index"),
        (["--target", "a:1", "--feedback"], "--feedback searches the index with the changed query vectors"),
    ],
)
def test_each_collection_needs_one_source_of_candidates(tmp_path: Path, options: list[str], message: str) -> None:
    assert message in refusal(eval_beir, tmp_path / "out", "--collection", tmp_path, *options)
