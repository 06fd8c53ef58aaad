"""Result files: run.trec keeps the order that was measured."""

from __future__ import annotations

import json
from pathlib import Path

import ir_measures
import pytest
from rerank_eval.measures import Metrics
from rerank_eval.run_files import trec_run, write_run

from rerank.engine.job import strictly_decreasing
from rerank.errors import ConfigError
from rerank.types import ScoredDoc


def test_written_scores_stay_strictly_decreasing() -> None:
    """trec_eval sorts by score, so two scores that are equal in the file would swap their documents."""
    scores = strictly_decreasing([-1.0] * 50)
    docs = [ScoredDoc(f"d{n}", score) for n, score in enumerate(scores)]
    read = list(ir_measures.read_trec_run(trec_run({"q": docs}, tag="t")))
    assert [doc.doc_id for doc in sorted(read, key=lambda doc: -doc.score)] == [f"d{n}" for n in range(50)]
    assert len({doc.score for doc in read}) == 50


def test_both_files_are_written(tmp_path: Path) -> None:
    metrics = Metrics({"nDCG@10": 0.5}, {"q": {"nDCG@10": 0.5}})
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


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_run(tmp_path / "file", {}, Metrics({}, {}), {})
