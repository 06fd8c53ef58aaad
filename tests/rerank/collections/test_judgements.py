"""Judgements by the text of their query."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rerank.collections.judgements import read_judgements
from rerank.errors import ConfigError
from tests.eval.data import write


def trec_files(folder: Path, qrels: str, queries: str) -> tuple[str, Path]:
    return str(write(folder / "qrels.txt", qrels)), write(folder / "queries.tsv", queries)


def test_queries_that_differ_in_case_and_spaces_are_the_same(tmp_path: Path) -> None:
    judgements = read_judgements(*trec_files(tmp_path, "1 0 a 2", "1\tWhat is  a\u00a0Flea"))
    assert judgements.of_query(" what IS a flea ") == {"a": 2}
    assert judgements.queries == ("What is  a\u00a0Flea",)


def test_grades_below_0_count_as_0_and_unjudged_queries_are_left_out(tmp_path: Path) -> None:
    judgements = read_judgements(*trec_files(tmp_path, "1 0 a -2\n1 0 b 1\n3 0 c 1", "1\tone\n2\ttwo"))
    assert judgements.of_query("one") == {"a": 0, "b": 1}
    assert judgements.queries == ("one",)
    assert judgements.of_query("two") == {}


def test_files_of_a_beir_folder(tmp_path: Path) -> None:
    qrels, queries = "query-id\tcorpus-id\tscore\nq\tmy moon.pdf\t1", '{"_id": "q", "text": "tides"}\n'
    assert read_judgements(*trec_files(tmp_path, qrels, queries)).of_query("tides") == {"my moon.pdf": 1}


def test_file_needs_the_texts_of_its_queries(tmp_path: Path) -> None:
    qrels, queries = trec_files(tmp_path, "1 0 a 2", "1\tone")
    with pytest.raises(ConfigError, match=r"qrels\.txt is a file, which needs .*; give them with --queries FILE"):
        read_judgements(qrels)
    with pytest.raises(ConfigError, match="--qrels pydoc is not a file, and needs no --queries"):
        read_judgements("pydoc", queries)


def test_queries_that_are_not_a_file_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q1 0 d1 1")
    os.mkfifo(tmp_path / "pipe")
    for queries in ("pipe", "missing"):
        with pytest.raises(ConfigError, match=f"{queries} cannot be read"):
            read_judgements(str(tmp_path / "qrels"), tmp_path / queries)
