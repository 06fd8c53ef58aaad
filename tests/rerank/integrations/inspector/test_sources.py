"""Queries, judgements and texts behind the results of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.errors import ConfigError
from rerank.integrations.inspector.sources import sources_of
from tests.conftest import PASSAGES
from tests.eval.data import write_qrels, write_requests
from tests.rerank.integrations.inspector.results import QUERIES, write_collection


@pytest.fixture
def collection(beir_folder: Path, tmp_path: Path) -> Path:
    return write_collection(tmp_path / "twelve", beir_folder)


def request_file(folder: Path) -> Path:
    write_qrels(folder / "qrels.txt", {"7": {"a": 3, "b": -1}})
    return write_requests(folder / "requests.jsonl", {"7": {"a": "text of a"}})


def test_request_file_has_queries_and_texts(tmp_path: Path) -> None:
    path = request_file(tmp_path / "dl")
    sources = sources_of({"requests": str(path), "qrels": str(path.with_name("qrels.txt"))}, "results")
    assert sources.queries == {"7": "what is 7"}
    assert sources.grades == {"7": {"a": 3, "b": 0}}
    assert sources.find_texts({"a", "unknown"}) == {"a": "text of a"}


def test_name_of_the_results_chooses_one_of_several_request_files(tmp_path: Path) -> None:
    paths = [request_file(tmp_path / name) for name in ("dl19", "dl20")]
    write_qrels(tmp_path / "dl20" / "qrels.txt", {"7": {"c": 1}})
    settings = {
        "requests": ", ".join(map(str, paths)),
        "qrels": ", ".join(str(path.with_name("qrels.txt")) for path in paths),
    }
    assert sources_of(settings, "dl20").grades == {"7": {"c": 1}}
    with pytest.raises(ConfigError, match=r"none or several of .* belong to the results 'other'"):
        sources_of(settings, "other")


def test_collection_without_its_index_is_read_itself(collection: Path, tmp_path: Path) -> None:
    settings = {"collection": str(collection), "index": str(tmp_path / "removed"), "split": "test"}
    sources = sources_of(settings, "results")
    assert sources.queries == QUERIES
    assert sources.find_texts({"moon"}) == {"moon": " ".join(PASSAGES["moon"])}


def test_collection_that_is_not_here_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="run `rerank inspect` in the folder where the evaluation ran"):
        sources_of({"collection": "beir/nfcorpus/test"}, "results")
