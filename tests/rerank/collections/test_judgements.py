"""Judgements by the text of their query."""

from __future__ import annotations

from pathlib import Path

from rerank.collections.judgements import read_judgements
from tests.eval.data import write


def beir_folder(folder: Path, qrels: str, queries: str) -> str:
    write(folder / "queries.jsonl", queries)
    (folder / "qrels").mkdir()
    write(folder / "qrels" / "test.tsv", f"query-id\tcorpus-id\tscore\n{qrels}")
    write(folder / "corpus.jsonl", '{"_id": "a", "text": "t"}')
    return str(folder)


def test_queries_that_differ_in_case_and_spaces_are_the_same(tmp_path: Path) -> None:
    judgements = read_judgements(beir_folder(tmp_path, "1\ta\t2", '{"_id": "1", "text": "What is  a\u00a0Flea"}'))
    assert judgements.of_query(" what IS a flea ") == {"a": 2}
    assert judgements.queries == ("What is  a\u00a0Flea",)


def test_grades_below_0_count_as_0_and_unjudged_queries_are_left_out(tmp_path: Path) -> None:
    judgements = read_judgements(
        beir_folder(tmp_path, "1\ta\t-2\n1\tb\t1\n3\tc\t1", '{"_id": "1", "text": "one"}\n{"_id": "2", "text": "two"}')
    )
    assert judgements.of_query("one") == {"a": 0, "b": 1}
    assert judgements.queries == ("one",)
    assert judgements.of_query("two") == {}
