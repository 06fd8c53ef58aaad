"""The table of systems and datasets."""

from __future__ import annotations

from dataclasses import replace

from rerank_eval.table import as_csv, as_latex, as_markdown

from tests.eval.test_report import BETTER, FIRST, WORSE, evaluation

X = replace(evaluation(FIRST, BETTER, WORSE), dataset="x_1")
Y = replace(evaluation(FIRST), dataset="y")


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


def test_latex_and_csv_have_the_cells_of_the_markdown() -> None:
    text = as_latex([X, Y])
    assert r"system & x\_1 & y & mean \\" in text
    assert r"c & 0.1000$^{\dagger}$$^{\ddagger}$ & – & – \\" in text
    assert "x_1,first stage,0.5,,\n" in as_csv([X, Y])
    assert len(as_csv([X, Y]).splitlines()) == 1 + 4 + 2
