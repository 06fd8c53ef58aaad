"""The report of an evaluation: tables, significance and warnings."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from rerank_eval.efficiency import COLUMNS
from rerank_eval.evaluation import FIRST_STAGE
from rerank_eval.measures import MetricValues
from rerank_eval.report import Report, SystemResult, comparisons, write_report
from rerank_eval.settings import ORACLE
from rerank_eval.statistics import compare, holm

from rerank.commands.console import PlainConsole


def result(name: str, values: list[float]) -> SystemResult:
    per_query = {f"q{number}": {"nDCG@10": value} for number, value in enumerate(values)}
    metrics = MetricValues({"nDCG@10": sum(values) / len(values)}, per_query)
    return SystemResult(name, metrics, dict.fromkeys(COLUMNS, 10.0), ["a fact"])


FIRST = result("a", [0.5, 0.6, 0.7, 0.4])
BETTER = result("b", [0.6, 0.7, 0.7, 0.3])
WORSE = result("c", [0.1, 0.2, 0.1, 0.0])
#: The first stage is not timed.
FIRST_STAGE_RESULT = SystemResult(FIRST_STAGE, result("", [0.5, 0.5, 0.5, 0.5]).metrics)
UPPER_BOUND = SystemResult(ORACLE, result("", [1.0, 1.0, 1.0, 1.0]).metrics)


def evaluation(*results: SystemResult) -> Report:
    return Report("d", "t", (FIRST_STAGE_RESULT, *results), UPPER_BOUND)


def markdown(report: Report) -> str:
    """The content of report.md."""
    with tempfile.TemporaryDirectory() as folder:
        write_report(report, Path(folder), PlainConsole(stderr=True))
        return (Path(folder) / "report.md").read_text(encoding="utf-8")


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The cells of the table below a heading, by the first cell of each row."""
    table = text.partition(heading)[2].partition("\n\n|")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
    return {row[0]: row[1:] for row in cells if row[0] not in ("system", "---")}


def test_systems_are_compared_with_the_first_stage_and_with_the_first_of_them() -> None:
    text = markdown(evaluation(FIRST, BETTER, WORSE))
    with_first_stage, with_first = rows(text, "compared with first stage"), rows(text, "compared with a")
    assert [row[0] for row in with_first_stage.values()] == ["+0.0500", "+0.0750", "-0.4000"]
    assert {name: (row[0], row[4]) for name, row in with_first.items()} == {
        "b": ("+0.0250", "2/1/1"),
        "c": ("-0.4500", "0/0/4"),
    }
    assert "compared with a" not in markdown(evaluation(FIRST))


def test_p_values_are_adjusted_over_all_comparisons() -> None:
    raw = [compare(other.metrics.values(), FIRST.metrics.values()).p for other in (BETTER, WORSE)]
    assert [p for _, _, p in comparisons([FIRST, BETTER, WORSE])] == pytest.approx(holm(raw))


def test_cost_and_warnings_of_systems_are_reported() -> None:
    text = markdown(evaluation(FIRST))
    assert list(rows(text, "## Latency")) == ["a"]
    assert "\na: a fact\n" in text
