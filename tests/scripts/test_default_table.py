"""The table has the forms of each list, and counts the lists that a model makes worse."""

import pytest
from rerank_eval.statistics import compare

from rerank.readers.candidates import CandidateList
from rerank.types import Passage, Query
from scripts.reproduce import default_table
from scripts.reproduce.default_table import JudgedLists, Row, as_markdown, fused, row_of


def test_table_counts_lists_that_are_worse_by_form():
    ups, downs = [0.3, 0.4, 0.5, 0.6], [0.2, 0.31, 0.4, 0.49]
    better, worse = compare(ups, downs), compare(downs, ups)
    hardly = compare([0.3, 0.4, 0.5, 0.598], ups)
    found = [Row("a", better), Row("b", worse, better), Row("c", hardly, None, worse)]
    lines = as_markdown(found).splitlines()
    assert lines[2].startswith("| a | 0.3500 | 0.4500 (+0.1000, p ")
    assert lines[2].endswith(", 4/0/0) |  |  |")
    of_texts, stated, search = lines[-3:]
    told = "mean gain -0.0002, worst -0.1000; significantly worse (p < .05, each alone) on 1 of 3, worse by more than"
    assert of_texts == f"As texts, nothing stated: {told} 0.005 on 1."
    assert "significantly worse (p < .05, each alone) on 0 of 3" in stated
    assert "significantly worse (p < .05, each alone) on 1 of 1" in search


def test_lists_are_fused_by_ranks_and_as_opensearch_does():
    first = [CandidateList(Query("q", "1"), (Passage("a", "A", 9.0), Passage("b", "B", 5.0), Passage("c", "C", 1.0)))]
    second = [CandidateList(Query("q", "1"), (Passage("c", "C", 0.9), Passage("d", "D", 0.1)))]
    for how, expected in (
        ("minmax", {"a": 0.5, "c": 0.5, "b": 0.25, "d": 0.0}),
        ("rrf", {"c": 1 / 63 + 1 / 61, "a": 1 / 61, "b": 1 / 62, "d": 1 / 62}),
    ):
        (found,) = fused(first, second, how, 10)
        assert found.query.query_id == "1"
        assert {passage.doc_id: passage.score for passage in found.candidates} == pytest.approx(expected)
        assert [passage.doc_id for passage in found.candidates] == list(expected)
    (alone,) = fused(first, [], "minmax", 2)
    assert [passage.doc_id for passage in alone.candidates] == ["a", "b"]


def test_row_of_a_call_that_was_stopped_is_read_again(tmp_path, monkeypatch):
    row = Row("a/b", compare([0.3, 0.4], [0.2, 0.1]), search=compare([0.1, 0.4], [0.2, 0.1]))
    monkeypatch.setattr(default_table, "measured", lambda *_: row)
    judged = JudgedLists("a/b", [], [])
    assert row_of(judged, None, "default", 100, tmp_path / "rows") == row
    monkeypatch.setattr(default_table, "measured", lambda *_: pytest.fail("it was measured again"))
    assert row_of(judged, None, "default", 100, tmp_path / "rows") == row
