"""Judgements are read as ir_measures.Qrel."""

from __future__ import annotations

from pathlib import Path

from ir_measures import Qrel
from rerank_eval.qrels import read_beir_qrels, read_trec_qrels


def test_trec_qrels_have_the_type_of_ir_measures(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("1 0 a 2\n", encoding="utf-8")
    assert read_trec_qrels(path) == [Qrel("1", "a", 2)]


def test_beir_qrels_have_the_type_of_ir_measures(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n", encoding="utf-8")
    assert read_beir_qrels(tmp_path, "dev") == [Qrel("1", "a", 1)]
