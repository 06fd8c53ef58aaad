"""Two folds of a collection's queries, and what they give together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rerank.collections import beir
from scripts.distill_folds import FOLDS, pooled, write_folds


def test_each_judged_query_is_held_out_once(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "one"}\n', encoding="utf-8")
    rows = [f"{query_id}\td{doc_id}\t1" for query_id in range(5) for doc_id in range(2)]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(["query\tdoc\tscore", *rows]), encoding="utf-8")
    write_folds(tmp_path, tmp_path / "folds")
    halves = [beir.qrels(tmp_path / "folds", fold) for fold in FOLDS]
    assert [{qrel.query_id for qrel in half} for half in halves] == [{"0", "2", "4"}, {"1", "3"}]
    assert sorted(halves[0] + halves[1]) == beir.qrels(tmp_path)


def test_folds_are_pooled_by_query(tmp_path: Path) -> None:
    for name, before, after in (("odd", {"1": 0.0, "3": 0.5}, {"1": 1.0, "3": 0.5}), ("even", {"2": 1.0}, {"2": 0.0})):
        report = {"held_out": {"before": {"R@100": before}, "after": {"R@100": after}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(report), encoding="utf-8")
    change = pooled([tmp_path / "odd.json", tmp_path / "even.json"])["R@100"]
    assert (change.before, change.after) == (pytest.approx(0.5), pytest.approx(0.5))
    assert change.p == pytest.approx(1.0)
