"""Result files: run.trec keeps the order that was measured."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rerank_eval.measures import MetricValues
from rerank_eval.run_files import trec_run, write_run

from rerank.engine.scores import strictly_decreasing
from rerank.types import ScoredDoc


@pytest.mark.parametrize("read_as", [float, np.float32])
@pytest.mark.parametrize(
    "scores",
    [
        strictly_decreasing([-1.0] * 50),  # differences of one float64 ulp
        strictly_decreasing([0.0] * 1000),
        [1.0, 1.0 - 1e-12, 0.5, 0.5 - 1e-12, 0.5 - 2e-12, -7.25],
        [1e300, 1e299, 3.0, -1e299, -1e300],  # outside float32
        [float(n) for n in range(100, 0, -1)],
    ],
)
def test_written_scores_decrease_strictly(scores: list[float], read_as: type) -> None:
    """trec_eval reads float32 and sorts by score, so two scores that are equal there would swap their documents."""
    docs = [ScoredDoc(f"d{n}", score) for n, score in enumerate(scores)]
    read = [line.split() for line in trec_run({"q": docs}, tag="t").splitlines()]
    written = [read_as(row[4]) for row in read]
    assert [row[2] for row in read] == [doc.doc_id for doc in docs]
    assert all(lower < higher for higher, lower in pairwise(written))


def test_white_space_in_ids_is_percent_encoded_with_a_note(tmp_path: Path) -> None:
    run = {"q 1": [ScoredDoc("my\u00a0file.pdf", 1.0), ScoredDoc("a%20b", 0.5)]}
    write_run(tmp_path, run, MetricValues({}, {}), {})
    assert (tmp_path / "run.trec").read_text(encoding="utf-8") == (
        "q%201 Q0 my%C2%A0file.pdf 1 1.0 rerank\nq%201 Q0 a%20b 2 0.5 rerank\n"
    )
    (note,) = json.loads((tmp_path / "measures.json").read_text(encoding="utf-8"))["notes"]
    assert note == "white space in ids is percent-encoded in run.trec, whose columns it separates: q%201"


def test_both_files_are_written(tmp_path: Path) -> None:
    metrics = MetricValues({"nDCG@10": 0.5}, {"q": {"nDCG@10": 0.5}})
    write_run(tmp_path / "out", {"q": [ScoredDoc("a", 1.0)]}, metrics, {"ranker": "identity"})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["measures.json", "run.trec"]
    measures = json.loads((tmp_path / "out" / "measures.json").read_text(encoding="utf-8"))
    assert measures == {
        "settings": {"ranker": "identity"},
        "mean": {"nDCG@10": 0.5},
        "per_query": {"q": {"nDCG@10": 0.5}},
        "missing": [],
        "notes": [],
    }
