"""Test collections by name (pydoc, BEIR folders and ir_datasets), and candidates of a TREC run over one."""

import gzip
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rerank_eval.collections import _passage, candidates_of_run, named_qrels, open_collection, read_run

from rerank.collections import NAMED, Collection
from rerank.collections.judgements import read_judgements
from rerank.errors import CollectionError, ConfigError
from rerank.readers.qrels import Qrel
from rerank.types import Passage, Query
from tests.eval.data import judged_collection, write

PASSAGES = {"a": Passage("a", "one"), "b": Passage("b", "Title two", title="Title"), "c": Passage("c", "three")}
QUERIES = {"1": Query("x", "1"), "2": Query("y", "2")}
SMALL = Collection("small", lambda: iter(PASSAGES.values()), queries=lambda: list(QUERIES.values()))


def test_collection_that_is_named_once_is_known_everywhere(monkeypatch):
    small = Collection("small", SMALL.passages, queries=SMALL.queries, qrels=lambda _: [Qrel("1", "a", 1)])
    monkeypatch.setitem(NAMED, "small", lambda: small)
    assert open_collection("small") is small
    assert read_judgements("small").grades_of("x") == {"a": 1}


def test_folder_in_beir_layout_is_a_collection(tmp_path):
    folder = judged_collection(tmp_path / "mine", {"a": "one", "b": "two"}, {"1": "x"}, {"1": {"a": 1}})
    collection = open_collection(str(folder))
    assert (collection.name, collection.queries()) == ("mine", [Query("x", "1")])
    assert collection.qrels("test") == [Qrel("1", "a", 1)]
    assert collection.find(["b", "z"]) == {"b": Passage("b", "two")}
    assert collection.find([]) == {}
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(CollectionError, match=r"mine': the folder has no corpus\.jsonl; give 'pydoc', a folder"):
        open_collection(str(folder))


def test_missing_package_ir_datasets_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(ConfigError, match=r"there is no such folder or file .* install rerank-listwise\[eval\]"):
        open_collection("beir/scifact/test")


def test_collection_of_ir_datasets(tmp_path):
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

    docs = TsvDocs(local("docs.tsv"), namespace="t", docstore_size_hint=2)
    queries = TsvQueries(local("queries.tsv"), namespace="t")
    small = ir_datasets.Dataset(docs, queries, TrecQrels(local("qrels.txt"), {}))
    ir_datasets.registry.register("rerank-test", small)
    assert named_qrels("rerank-test") == [Qrel("1", "a", 0)]
    collection = open_collection("rerank-test")
    assert collection.queries() == [Query("x", "1"), Query("y", "2")]
    assert collection.qrels("any split") == [Qrel("1", "a", 0)]
    assert collection.find(["b"]) == {"b": Passage("b", "two")}
    assert list(collection.passages()) == [Passage("a", "one"), Passage("b", "two")]


@pytest.mark.parametrize(("text", "title"), [("Fleas are small.", ""), ("Fleas. They are small.", "Fleas.")])
def test_passage_of_ir_datasets_has_the_title_that_its_text_begins_with(text, title):
    row = SimpleNamespace(doc_id="a", title="Fleas.", default_text=lambda: text)
    assert _passage(row) == Passage("a", text, title=title)


def test_judgements_by_name_that_are_not_here_are_one_line(monkeypatch):
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
            named_qrels(f"trec-dl-{year}")
    assert asked == ["msmarco-passage/trec-dl-2019/judged", "msmarco-passage-v2/trec-dl-2023/judged"]
    assert named_qrels("no-such.txt") is None


# --- runs


def test_run_is_sorted_by_score_as_in_trec_eval(tmp_path):
    """Ranks are ignored, ties are sorted by descending doc_id, and the unjudged query 3 is left out."""
    rows = ["1 Q0 a 1 2.0 t", "1 Q0 b 2 5.0 t", "1 Q0 c 3 2.0 t", "3 Q0 unknown 1 1.0 t"]
    (request,), query_ids = candidates_of_run(write(tmp_path / "run.trec", *rows), SMALL, QUERIES)
    assert query_ids == {"1", "3"}
    assert request.query == QUERIES["1"]
    scores = {"b": 5.0, "c": 2.0, "a": 2.0}
    expected = tuple(replace(PASSAGES[doc_id], score=score) for doc_id, score in scores.items())
    assert request.candidates == expected
    assert candidates_of_run(tmp_path / "run.trec", SMALL, QUERIES, depth=2)[0][0].candidates == expected[:2]
    with pytest.raises(CollectionError, match=r"other\.trec cannot be read"):
        candidates_of_run(tmp_path / "other.trec", SMALL, QUERIES)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds none of the 2 judged queries of small"),
        (["9 Q0 a 1 1.0 t"], "holds none of the 2 judged queries of small, but 1 others; give the run"),
        (["1 Q0 z 1 1.0 t"], "1 of 1 passages are not in small: 'z'"),
    ],
)
def test_run_that_does_not_fit_the_collection_is_refused(tmp_path, rows, message):
    with pytest.raises(CollectionError, match=message):
        candidates_of_run(write(tmp_path / "run.trec", *rows), SMALL, QUERIES)


@pytest.mark.parametrize(
    "content",
    [
        b"1 Q0 a 1 2.5 t\n1 Q0 b 2 -1e-1 t\n",
        b"\xef\xbb\xbf1 Q0 a 1 2.5 t\r\n\r\n  1  Q0\tb 2 -.1 t",
        b"1\tQ0\ta\t1\t2.5\tmy tag\n1\tQ0\tb\t2\t-0.1\t\n",
        gzip.compress(b"\xef\xbb\xbf1 Q0 a 1 2.5 t\n1 Q0 b 2 -0.1 t\n", mtime=0),
    ],
)
def test_run_is_read_as_all_other_files(tmp_path, content):
    (tmp_path / "run.trec").write_bytes(content)
    assert read_run(tmp_path / "run.trec") == {"1": {"a": 2.5, "b": -0.1}}
