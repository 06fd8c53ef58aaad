"""The table of systems and datasets, from the summaries of evaluations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rerank_eval.table import (
    app,
    as_latex,
    as_markdown,
    summarize,
    write_summary,
)
from typer.testing import CliRunner

from tests.eval.test_report import BETTER, FIRST, WORSE, evaluation

X = replace(summarize(evaluation(FIRST, BETTER, WORSE)), dataset="x_1")
Y = replace(summarize(evaluation(FIRST)), dataset="y")


def test_datasets_are_columns_and_missing_systems_are_dashes() -> None:
    """c is below the first stage, and below a: p is .004 and .012."""
    table, caption, titles = as_markdown([X, Y]).split("\n\n")
    assert table.splitlines() == [
        "| system | x_1 | y | mean |",
        "| --- | ---: | ---: | ---: |",
        "| first stage | 0.5000 | 0.5000 | 0.5000 |",
        "| a | 0.5500 | 0.5500 | 0.5500 |",
        "| b | 0.5750 | – | – |",
        "| c | 0.1000†‡ | – | – |",
    ]
    assert caption.startswith("nDCG@10; † p < 0.05 against first stage, ‡ against a")
    assert titles == "x_1: t.\ny: t."


def test_latex_has_the_cells_of_the_markdown() -> None:
    text = as_latex([X, Y])
    assert r"system & x\_1 & y & mean \\" in text
    assert r"c & 0.1000$^{\dagger}$$^{\ddagger}$ & – & – \\" in text


@pytest.mark.parametrize(("form", "found"), [("markdown", "| a | 0.5500"), ("latex", "a & 0.5500"), ("csv", "Set,a,4")])
def test_command_prints_the_table(tmp_path: Path, form: str, found: str) -> None:
    write_summary(X, tmp_path)
    assert found in CliRunner().invoke(app, [f"Set={tmp_path}", "--format", form]).output
