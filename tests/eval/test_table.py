"""Systems × datasets: what was summed up is what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_eval.experiment import Result
from rerank_eval.report import comparisons
from rerank_eval.table import SUMMARY_FILE, app, as_json, read_summary, summary_of, table
from typer.testing import CliRunner

from rerank.errors import CollectionError
from tests.eval.test_report import BETTER, FIRST, WORSE


def test_summary_comes_back_as_it_was(tmp_path: Path) -> None:
    summary = summary_of("d", "4 queries", [FIRST, BETTER])
    (tmp_path / SUMMARY_FILE).write_text(as_json(summary), encoding="utf-8")
    assert read_summary(tmp_path) == summary


def test_p_is_that_of_the_report() -> None:
    summary = summary_of("d", "t", [FIRST, BETTER, WORSE])
    expected = {other.name: p for other, _, p in comparisons([FIRST, BETTER, WORSE])}
    assert {name: row.p for name, row in summary.rows.items()} == {"a": None, **expected}


def test_datasets_are_columns_and_what_was_not_asked_is_a_dash() -> None:
    columns = {"x": [summary_of("x", "t", [FIRST, BETTER])], "y": [summary_of("y", "t", [FIRST])]}
    lines = table(columns).splitlines()
    assert lines[0].count("nDCG@10") == 2
    assert [line.split("|")[1].strip() for line in lines[2:4]] == ["a", "b"]
    assert lines[2].startswith("| a | 0.5500 ± 0.205 | – | 2.5 | 0.5500 ± 0.205 |")
    assert lines[3].endswith("| – | – | – |")


def test_several_summaries_of_a_dataset_stand_below_each_other() -> None:
    text = table({"x": [summary_of("x", "over BM25", [FIRST]), summary_of("x", "over dense", [BETTER])]})
    assert "x: over BM25, p against a; over dense, p against b." in text
    assert text.splitlines()[0].count("nDCG@10") == 1


def test_one_query_has_no_interval() -> None:
    one = Result("a", FIRST.report.__class__({"nDCG@10": 0.5}, {"q": {"nDCG@10": 0.5}}))
    assert "| a | 0.5000 | – | – |" in table({"x": [summary_of("x", "t", [one])]})


@pytest.mark.parametrize("text", ["", "[]", '{"rows": {"a": {}}}'])
def test_what_is_no_summary_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / SUMMARY_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(CollectionError, match=r"summary\.json is no summary"):
        read_summary(tmp_path)


def test_command_prints_the_table(tmp_path: Path) -> None:
    (tmp_path / SUMMARY_FILE).write_text(as_json(summary_of("d", "t", [FIRST])), encoding="utf-8")
    assert "| a | 0.5500" in CliRunner().invoke(app, [f"Set={tmp_path}"]).output
    assert isinstance(CliRunner().invoke(app, ["no folder"]).exception, CollectionError)
