"""Runs: candidates of one that is read, and run.trec, which keeps the order that was measured."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from rerank_eval.datasets import Dataset
from rerank_eval.measures import MetricValues
from rerank_eval.run_files import candidates_of_run, read_run, write_run

from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel
from rerank.types import Passage, Query, ScoredDoc
from tests.eval.data import write

PASSAGES = {"a": Passage("a", "one"), "b": Passage("b", "Title two", title="Title"), "c": Passage("c", "three")}
DATASET = Dataset(
    "small",
    {"1": Query("x", "1"), "2": Query("y", "2")},
    [Qrel("1", "a", 1), Qrel("2", "b", 1)],
    lambda doc_ids: {doc_id: PASSAGES[doc_id] for doc_id in doc_ids if doc_id in PASSAGES},
)


def test_white_space_in_ids_is_percent_encoded_with_a_note(tmp_path: Path) -> None:
    run = {"q 1": [ScoredDoc("my\u00a0file.pdf", 1.0), ScoredDoc("a%20b", 0.5)]}
    write_run(tmp_path, run, MetricValues({}, {}), {})
    assert (tmp_path / "run.trec").read_text(encoding="utf-8") == (
        "q%201 Q0 my%C2%A0file.pdf 1 1.0 rerank\nq%201 Q0 a%20b 2 0.5 rerank\n"
    )
    (note,) = json.loads((tmp_path / "measures.json").read_text(encoding="utf-8"))["notes"]
    assert note == "white space in ids is percent-encoded in run.trec, whose columns it separates: q%201"


def run_file(folder: Path, *rows: str) -> Path:
    return write(folder / "run.trec", *rows)


def test_run_is_sorted_by_score_as_in_trec_eval(tmp_path: Path) -> None:
    """Ranks are ignored, ties are sorted by descending doc_id, and the unjudged query 3 is left out."""
    rows = ["1 Q0 a 1 2.0 t", "1 Q0 b 2 5.0 t", "1 Q0 c 3 2.0 t", "3 Q0 unknown 1 1.0 t"]
    (request,), unjudged = candidates_of_run(run_file(tmp_path, *rows), DATASET)
    assert unjudged == ["3"]
    assert request.query == DATASET.queries["1"]
    expected = (
        Passage("b", text="Title two", score=5.0, title="Title"),
        Passage("c", text="three", score=2.0),
        Passage("a", text="one", score=2.0),
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
        (["1 Q0 z 1 1.0 t"], "1 of 1 passages are not in small: 'z'"),
    ],
)
def test_run_that_does_not_fit_the_collection_is_refused(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        candidates_of_run(run_file(tmp_path, *rows), DATASET)


@pytest.mark.parametrize(
    "content",
    [
        b"1 Q0 a 1 2.5 t\n1 Q0 b 2 -1e-1 t\n",
        b"\xef\xbb\xbf1 Q0 a 1 2.5 t\r\n\r\n  1  Q0\tb 2 -.1 t",
        b"1\tQ0\ta\t1\t2.5\tmy tag\n1\tQ0\tb\t2\t-0.1\t\n",
        gzip.compress(b"\xef\xbb\xbf1 Q0 a 1 2.5 t\n1 Q0 b 2 -0.1 t\n", mtime=0),
    ],
)
def test_run_is_read_as_all_other_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.trec").write_bytes(content)
    assert read_run(tmp_path / "run.trec") == {"1": {"a": 2.5, "b": -0.1}}
