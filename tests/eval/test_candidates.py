"""Candidates of TREC runs and of Pyserini's prebuilt indexes, in the form of request files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rerank_eval import candidates
from rerank_eval.candidates import candidates_of_prebuilt, candidates_of_run, with_repaired_texts
from rerank_eval.datasets import Dataset

from rerank.errors import CollectionError, ConfigError
from rerank.readers.qrels import Qrel
from rerank.readers.requests import Request
from rerank.types import CandidateSource, Passage, Query
from tests.eval.data import write

PASSAGES = {
    "a": Passage("a", "one"),
    "b": Passage("b", "Title two", title="Title"),
    "c": Passage("c", "three"),
}
DATASET = Dataset(
    "small",
    {"1": Query("x", "1"), "2": Query("y", "2")},
    [Qrel("1", "a", 1), Qrel("2", "b", 1)],
    lambda doc_ids: {doc_id: PASSAGES[doc_id] for doc_id in doc_ids if doc_id in PASSAGES},
)


def run_file(folder: Path, *rows: str) -> Path:
    return write(folder / "run.trec", *rows)


def test_run_is_sorted_by_score_as_in_trec_eval(tmp_path: Path) -> None:
    """Ranks are ignored, ties are sorted by descending doc_id, and the unjudged query 3 is left out."""
    rows = ["1 Q0 a 1 2.0 t", "1 Q0 b 2 5.0 t", "1 Q0 c 3 2.0 t", "3 Q0 unknown 1 1.0 t"]
    (request,), unjudged = candidates_of_run(run_file(tmp_path, *rows), DATASET)
    assert unjudged == ["3"]
    assert request.query == DATASET.queries["1"]
    expected = (
        CandidateSource("b", text="Title two", score=5.0, title="Title"),
        CandidateSource("c", text="three", score=2.0),
        CandidateSource("a", text="one", score=2.0),
    )
    assert request.candidates == expected
    assert candidates_of_run(tmp_path / "run.trec", DATASET, depth=2)[0][0].candidates == expected[:2]
    with pytest.raises(CollectionError, match=r"other\.trec cannot be read"):
        candidates_of_run(tmp_path / "other.trec", DATASET)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds none of the 2 judged queries of small"),
        (["9 Q0 a 1 1.0 t"], "holds none of the 2 judged queries of small, but 1 others; give the run"),
        (["1 a 1.0"], "expected lines of query_id Q0 doc_id rank score tag"),
        (["1 Q0 a 1 high t"], "expected lines of"),
        (["1 Q0 z 1 1.0 t"], "1 of 1 passages are not in small: 'z'"),
    ],
)
def test_run_that_does_not_fit_the_collection_is_refused(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        candidates_of_run(run_file(tmp_path, *rows), DATASET)


class Searcher:
    """Stands in for Pyserini's LuceneSearcher."""

    def __init__(self, stored: str | None) -> None:
        self._stored = stored

    def set_bm25(self, k1: float, b: float) -> None:
        assert (k1, b) == (0.9, 0.4)

    def search(self, text: str, k: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(docid=f"d{n}", score=9.0 - n) for n in range(3)][:k]

    def doc(self, doc_id: str) -> SimpleNamespace:
        return SimpleNamespace(raw=lambda: self._stored)


def offer(monkeypatch: pytest.MonkeyPatch, opened: object) -> None:
    """Makes Pyserini return `opened` for every prebuilt index, or raise it."""

    def from_prebuilt_index(name: str) -> object:
        if isinstance(opened, Exception):
            raise opened
        return opened

    module = SimpleNamespace(LuceneSearcher=SimpleNamespace(from_prebuilt_index=from_prebuilt_index))
    monkeypatch.setattr(candidates, "pyserini_module", lambda name: module)


@pytest.mark.parametrize(
    ("stored", "title"), [(json.dumps({"title": "T", "text": "body"}), "T"), ("T body", "")], ids=["JSON", "plain"]
)
def test_prebuilt_index_gives_candidates_with_texts(monkeypatch: pytest.MonkeyPatch, stored: str, title: str) -> None:
    offer(monkeypatch, Searcher(stored))
    requests = candidates_of_prebuilt("msmarco", DATASET, depth=2)
    assert [request.query.query_id for request in requests] == ["1", "2"]
    assert requests[0].candidates[1] == CandidateSource("d1", text="T body", score=8.0, title=title)
    assert len(requests[0].candidates) == 2


@pytest.mark.parametrize(
    ("opened", "message"),
    [
        (None, "no prebuilt index 'msmarco'"),
        (OSError("no route"), "cannot download its index 'msmarco', which needs a network: no route"),
    ],
)
def test_unavailable_prebuilt_index_is_named(monkeypatch: pytest.MonkeyPatch, opened: object, message: str) -> None:
    offer(monkeypatch, opened)
    with pytest.raises(ConfigError, match=message):
        candidates_of_prebuilt("msmarco", DATASET, depth=2)


@pytest.mark.parametrize("stored", [None, json.dumps({"id": "d0"})])
def test_prebuilt_index_without_texts_is_refused(monkeypatch: pytest.MonkeyPatch, stored: str | None) -> None:
    offer(monkeypatch, Searcher(stored))
    with pytest.raises(CollectionError, match="stores no passage texts"):
        candidates_of_prebuilt("msmarco", DATASET, depth=2)


def test_texts_are_repaired_and_cut_and_nothing_else_changes() -> None:
    """As RankLLM prepares them."""
    pytest.importorskip("ftfy")
    candidates = (CandidateSource("a", text=" donâ€™t\n go ", score=2.0), CandidateSource("b", text="word " * 400))
    repaired = with_repaired_texts(Request(Query("donâ€™t"), candidates))
    assert repaired.query == Query("donâ€™t")
    assert repaired.candidates[0] == CandidateSource("a", text="don't go", score=2.0)
    assert repaired.candidates[1].text == " ".join(["word"] * 300)
