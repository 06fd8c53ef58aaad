"""The tables of systems, datasets and measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rerank_eval.evaluation import FIRST_STAGE
from rerank_eval.report import Report
from rerank_eval.settings import ORACLE
from rerank_eval.table import write_tables

from rerank.commands.run import PlainConsole
from tests.eval.test_report import BETTER, FIRST, WORSE, evaluation, result

X = replace(evaluation(FIRST, BETTER, WORSE), dataset="x_1")
Y = replace(evaluation(FIRST), dataset="y")
_VALUES = {FIRST_STAGE: [0.5, 0.5, 0.5, 0.5], "a": [0.5, 0.6, 0.7, 0.4], ORACLE: [1.0, 1.0, 1.0, 1.0]}


def of_measures(dataset: str, *measures: str) -> Report:
    """A system on one dataset by several measures, whose values are the same."""
    first, system, best = (result(name, values, *measures) for name, values in _VALUES.items())
    return Report(dataset, "t", (first, system), best, rel=1)


def written(folder: Path, *reports: Report) -> dict[str, str]:
    write_tables(reports, folder, PlainConsole(stderr=True))
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_datasets_are_columns_and_missing_systems_are_dashes(tmp_path: Path) -> None:
    """c is below the first stage, and below a: p is .004 and .012."""
    _, table, caption, titles = written(tmp_path, X, Y)["report.md"].strip().split("\n\n")
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


def test_latex_and_csv_have_the_cells_of_the_markdown(tmp_path: Path) -> None:
    files = written(tmp_path, X, Y)
    assert r"system & x\_1 & y & mean \\" in files["table.tex"]
    assert r"c & 0.1000$^{\dagger}$$^{\ddagger}$ & – & – \\" in files["table.tex"]
    assert "x_1,nDCG@10,first stage,0.5,,\n" in files["table.csv"]
    assert len(files["table.csv"].splitlines()) == 1 + 4 + 2


def test_one_dataset_has_a_table_whose_columns_are_all_measures(tmp_path: Path) -> None:
    files = written(tmp_path, of_measures("x", "RR@10"))
    assert set(files) == {"table.tex", "table.csv"}
    assert files["table.tex"].startswith("\\begin{tabular}{lrr}\n\\toprule\nsystem & nDCG@10 & RR@10 \\\\\n")
    assert "\na & 0.5500 & 0.5500 \\\\\n" in files["table.tex"]
    assert "x,RR@10,a,0.55," in files["table.csv"]


def test_several_datasets_have_a_table_for_each_measure(tmp_path: Path) -> None:
    """Measures that count other grades as relevant are in one table, which names both."""
    files = written(tmp_path, of_measures("x", "RR@10"), of_measures("y", "RR(rel=2)@10"))
    assert files["table.tex"].count("\\begin{tabular}{lrrr}") == 2
    assert "% RR@10, RR(rel=2)@10; " in files["table.tex"]
    assert files["report.md"].count("| a | 0.5500 | 0.5500 | 0.5500 |") == 2
    assert "y,RR(rel=2)@10,a,0.55," in files["table.csv"]
