"""Test collections by name: pydoc, BEIR folders and ir_datasets, each with queries, judgements and passages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rerank_eval.datasets import open_dataset, open_qrels

from rerank.collections import NAMED, Collection
from rerank.collections.judgements import read_judgements
from rerank.errors import CollectionError, ConfigError
from rerank.readers.qrels import Qrel
from rerank.types import Passage, Query
from tests.eval.data import judged_collection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two passages and two queries; one query has judgements."""
    return judged_collection(tmp_path, {"a": "one", "b": "two"}, {"1": "x", "2": "y"}, {"1": {"a": 1}})


def test_folder_has_judged_queries_and_texts(folder: Path) -> None:
    dataset = open_dataset(str(folder))
    assert dataset.name == folder.name
    assert dataset.queries == {"1": Query("x", "1")}
    assert dataset.qrels == [Qrel("1", "a", 1)]
    assert dataset.passages(["a", "b"]) == {"a": Passage("a", "one"), "b": Passage("b", "two")}
    assert dataset.passages([]) == {}


def test_collection_that_is_named_once_is_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Collection(
        "small",
        lambda: iter([Passage("a", "one")]),
        queries=lambda: [Query("x", "1")],
        qrels=lambda _: [Qrel("1", "a", 1)],
    )
    monkeypatch.setitem(NAMED, "small", lambda: small)
    dataset = open_dataset("small")
    assert (dataset.queries, dataset.passages(["a"])) == ({"1": Query("x", "1")}, {"a": Passage("a", "one")})
    assert read_judgements("small").of_query("x") == {"a": 1}


def test_missing_package_ir_datasets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(ConfigError, match=r"neither 'pydoc' nor a folder .* install rerank-listwise\[eval\]"):
        open_dataset("beir/scifact/test")


def test_collection_of_ir_datasets(tmp_path: Path) -> None:
    """A small collection that the test registers in ir_datasets."""
    ir_datasets = pytest.importorskip("ir_datasets")
    from ir_datasets.formats import TrecQrels, TsvDocs, TsvQueries

    (tmp_path / "docs.tsv").write_text("a\tone\nb\ttwo\n", encoding="utf-8")
    (tmp_path / "queries.tsv").write_text("1\tx\n2\ty\n", encoding="utf-8")
    (tmp_path / "qrels.txt").write_text("1 0 a -1\n", encoding="utf-8")

    def local(name: str) -> SimpleNamespace:
        """Stands in for a downloaded file."""
        path = tmp_path / name
        return SimpleNamespace(path=lambda *_, **__: str(path), stream=lambda: path.open("rb"))

    small = ir_datasets.Dataset(
        TsvDocs(local("docs.tsv"), namespace="t", docstore_size_hint=2),
        TsvQueries(local("queries.tsv"), namespace="t"),
        TrecQrels(local("qrels.txt"), {}),
    )
    ir_datasets.registry.register("rerank-test", small)
    assert open_qrels("rerank-test", ())[0] == [Qrel("1", "a", 0)]
    dataset = open_dataset("rerank-test")
    assert dataset.queries == {"1": Query("x", "1")}
    assert dataset.qrels == [Qrel("1", "a", 0)]
    assert dataset.passages(["b"]) == {"b": Passage("b", "two")}


def test_judgements_by_name_that_are_not_here_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    asked: list[str] = []

    def load(name: str) -> SimpleNamespace:
        if name == "no-such.txt":
            raise KeyError(name)
        asked.append(name)
        return SimpleNamespace(qrels_iter=sources_that_fail)

    def sources_that_fail() -> None:
        """Raises what ir_datasets raises where no source of a file answers."""
        failed = [("nist", OSError("Name or service not known")), ("mirror", OSError("HTTPSConnectionPool(...)"))]
        raise RuntimeError("All download sources failed", failed)

    monkeypatch.setattr(ir_datasets, "load", load)
    for year in (2019, 2023):
        with pytest.raises(ConfigError, match=rf"^trec-dl-{year} of ir_datasets cannot be downloaded \(Name or"):
            open_qrels(f"trec-dl-{year}", ())
    assert asked == ["msmarco-passage/trec-dl-2019/judged", "msmarco-passage-v2/trec-dl-2023/judged"]
    with pytest.raises(CollectionError, match=r"no-such\.txt cannot be read"):
        open_qrels("no-such.txt", ())
