"""Candidates of TREC runs, in the form of request files."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_eval.candidates import candidates_of_run
from rerank_eval.datasets import Dataset

from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel
from rerank.types import Passage, Query
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
