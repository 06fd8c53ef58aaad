"""The table of systems and datasets, from the summaries of evaluations."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_eval.table import SUMMARY_FILE, app, read_summary, summarize, summary_json, table
from typer.testing import CliRunner

from rerank.errors import CollectionError
from tests.eval.test_report import BETTER, FIRST


def test_summary_is_read_as_written(tmp_path: Path) -> None:
    summary = summarize("d", "4 queries", [FIRST, BETTER])
    (tmp_path / SUMMARY_FILE).write_text(summary_json(summary), encoding="utf-8")
    assert read_summary(tmp_path) == summary


def test_datasets_are_columns_and_missing_systems_are_dashes() -> None:
    columns = {"x": [summarize("x", "t", [FIRST, BETTER])], "y": [summarize("y", "t", [FIRST])]}
    lines = table(columns).splitlines()
    assert lines[0].count("nDCG@10") == 2
    assert [line.split("|")[1].strip() for line in lines[2:4]] == ["a", "b"]
    assert lines[2].startswith("| a | 0.5500 ± 0.205 | – | 2.5 | 0.5500 ± 0.205 |")
    assert lines[3].endswith("| – | – | – |")


def test_summaries_of_one_dataset_stand_below_each_other() -> None:
    text = table({"x": [summarize("x", "over BM25", [FIRST]), summarize("x", "over dense", [BETTER])]})
    assert "x: over BM25, compared with a; over dense, compared with b." in text
    assert text.splitlines()[0].count("nDCG@10") == 1


@pytest.mark.parametrize("text", ["", "[]", '{"rows": {"a": {}}}'])
def test_file_without_a_summary_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / SUMMARY_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(CollectionError, match=r"summary\.json is no summary"):
        read_summary(tmp_path)


def test_command_prints_the_table(tmp_path: Path) -> None:
    (tmp_path / SUMMARY_FILE).write_text(summary_json(summarize("d", "t", [FIRST])), encoding="utf-8")
    assert "| a | 0.5500" in CliRunner().invoke(app, [f"Set={tmp_path}"]).output
    assert isinstance(CliRunner().invoke(app, ["no folder"]).exception, CollectionError)
