"""The report of an evaluation: tables, significance and warnings, and the tables of papers."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from rerank_eval.evaluation import FIRST_STAGE
from rerank_eval.measures import COST_COLUMNS, MetricValues
from rerank_eval.report import Report, SystemResult, comparisons, verdicts, write_report, write_tables
from rerank_eval.settings import ORACLE
from rerank_eval.statistics import compare, holm

from rerank.commands.run import PlainConsole


def result(name: str, values: list[float], *others: str) -> SystemResult:
    """A result with these values of nDCG@10 and of the other measures."""
    measures = ["nDCG@10", *others]
    per_query = {f"q{number}": dict.fromkeys(measures, value) for number, value in enumerate(values)}
    metrics = MetricValues(dict.fromkeys(measures, sum(values) / len(values)), per_query)
    return SystemResult(name, metrics, dict.fromkeys(COST_COLUMNS, 10.0), ["a fact"])


FIRST = result("a", [0.5, 0.6, 0.7, 0.4])
BETTER = result("b", [0.6, 0.7, 0.7, 0.3])
WORSE = result("c", [0.1, 0.2, 0.1, 0.0])
#: The first stage is not timed.
FIRST_STAGE_RESULT = SystemResult(FIRST_STAGE, result("", [0.5, 0.5, 0.5, 0.5]).metrics)
UPPER_BOUND = SystemResult(ORACLE, result("", [1.0, 1.0, 1.0, 1.0]).metrics)


def evaluation(*results: SystemResult) -> Report:
    return Report("d", "t", (FIRST_STAGE_RESULT, *results), UPPER_BOUND, rel=1, judged_queries=9)


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


def test_systems_are_compared_with_the_first_stage_and_with_the_first_of_them():
    text = markdown(evaluation(FIRST, BETTER, WORSE))
    with_first_stage, with_first = rows(text, "compared with first stage"), rows(text, "compared with a")
    assert [row[0] for row in with_first_stage.values()] == ["+0.0500", "+0.0750", "-0.4000"]
    compared = {name: (row[0], row[4]) for name, row in with_first.items()}
    assert compared == {"b": ("+0.0250", "2/1/1"), "c": ("-0.4500", "0/0/4")}
    assert "compared with a" not in markdown(evaluation(FIRST))


def test_p_values_are_adjusted_over_all_comparisons():
    raw = [compare(other.metrics.values(), FIRST.metrics.values()).p for other in (BETTER, WORSE)]
    assert [p for _, _, p in comparisons([FIRST, BETTER, WORSE])] == pytest.approx(holm(raw))


def test_a_single_comparison_is_not_corrected_for_several():
    text = markdown(evaluation(FIRST))
    assert "Paired, two-sided t-test over 4 queries. A" in text
    assert "Holm" not in text
    assert "corrected for 3 comparisons" in markdown(evaluation(FIRST, BETTER, WORSE))


def test_intervals_are_within_the_range_of_the_measure():
    text = markdown(evaluation(result("a", [1.0, 1.0, 1.0, 0.9]), result("b", [0.0, 0.0, 0.1, 0.0])))
    means, differences = rows(text, "Means over"), rows(text, "compared with first stage")
    assert (means["a"][-1], means["b"][-1]) == ("0.8954 to 1.0000", "0.0000 to 0.1046")
    two = result("f", [0.4]), result("a", [0.6])
    alone = markdown(Report("d", "t", two, result(ORACLE, [1.0]), rel=1, judged_queries=1))
    assert rows(alone, "Means over")["a"][-1] == "0.0000 to 1.0000"
    assert rows(alone, "compared with f")["a"][1] == "-1.0000 to +1.0000"
    assert differences["a"][1] == "+0.3954 to +0.5546"


def test_report_that_would_be_replaced_stays_beside_the_new_one(tmp_path, capsys):
    console = PlainConsole(stderr=True)
    for name in ("a", "a", "b", "c"):
        write_report(evaluation(result(name, [0.5, 0.6, 0.7, 0.4])), tmp_path, console)
    found = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    systems = {name: next(system for system in "abc" if f"\n| {system} |" in text) for name, text in found.items()}
    assert systems == {"report-1.md": "a", "report-2.md": "b", "report.md": "c"}
    said = f"report: {tmp_path / 'report.md'}; the one before it is {tmp_path / 'report-2.md'}"
    assert said in capsys.readouterr().err


def test_cost_and_warnings_of_systems_are_reported():
    text = markdown(evaluation(FIRST))
    assert list(rows(text, "## Latency")) == ["a"]
    assert "\na: a fact\n" in text


# --- tables of papers

X = replace(evaluation(FIRST, BETTER, WORSE), dataset="x_1")
Y = replace(evaluation(FIRST), dataset="y")
_VALUES = {FIRST_STAGE: [0.5, 0.5, 0.5, 0.5], "a": [0.5, 0.6, 0.7, 0.4], ORACLE: [1.0, 1.0, 1.0, 1.0]}


def of_measures(dataset: str, *measures: str) -> Report:
    """A system on one dataset by several measures, whose values are the same."""
    first, system, best = (result(name, values, *measures) for name, values in _VALUES.items())
    return Report(dataset, "t", (first, system), best, rel=1, judged_queries=9)


def written(folder: Path, *reports: Report) -> dict[str, str]:
    write_tables(reports, folder, PlainConsole(stderr=True))
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_datasets_are_columns_and_missing_systems_are_dashes(tmp_path):
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


def test_latex_and_csv_have_the_cells_of_the_markdown(tmp_path):
    files = written(tmp_path, X, Y)
    assert r"system & x\_1 & y & mean \\" in files["table.tex"]
    assert r"c & 0.1000$^{\dagger}$$^{\ddagger}$ & – & – \\" in files["table.tex"]
    assert "x_1,nDCG@10,first stage,0.5,,\n" in files["table.csv"]
    assert len(files["table.csv"].splitlines()) == 1 + 4 + 2


def test_one_dataset_has_a_table_whose_columns_are_all_measures(tmp_path):
    files = written(tmp_path, of_measures("x", "RR@10"))
    assert set(files) == {"table.tex", "table.csv"}
    assert files["table.tex"].startswith("\\begin{tabular}{lrr}\n\\toprule\nsystem & nDCG@10 & RR@10 \\\\\n")
    assert "\na & 0.5500 & 0.5500 \\\\\n" in files["table.tex"]
    assert "x,RR@10,a,0.55," in files["table.csv"]


def test_several_datasets_have_a_table_for_each_measure(tmp_path):
    """Measures that count other grades as relevant are in one table, which names both."""
    files = written(tmp_path, of_measures("x", "RR@10"), of_measures("y", "RR(rel=2)@10"))
    assert files["table.tex"].count("\\begin{tabular}{lrrr}") == 2
    assert "% RR@10, RR(rel=2)@10; " in files["table.tex"]
    assert files["report.md"].count("| a | 0.5500 | 0.5500 | 0.5500 |") == 2
    assert "y,RR(rel=2)@10,a,0.55," in files["table.csv"]


def test_hash_of_a_model_is_not_in_the_report():
    """It is in measures.json; the lines were longer than a screen."""
    system = replace(FIRST, fingerprint={"ranker": "first", "model_id": "m", "model_revision": "abcdef"})
    text = markdown(evaluation(system))
    assert "- **a**: first, model m\n" in text
    assert "abcdef" not in text


def test_last_lines_say_in_words_what_was_gained_over_the_first_stage_and_what_not():
    far = result("d", [0.9, 0.91, 0.89, 0.9])
    same = result("e", [0.5, 0.5, 0.5, 0.5])
    lines = list(verdicts(evaluation(FIRST, far, WORSE, same)))
    chance = "over 4 queries this may be chance, so nothing was shown to be gained or lost"
    for line, expected in zip(
        lines[:3],
        [
            rf"a gains 0\.0500 nDCG@10 against first stage, p = [\d.]+: {chance}",
            r"d gains 0\.4000 nDCG@10 against first stage, p = [\d.e-]+: more than chance explains",
            r"c loses 0\.4000 nDCG@10 against first stage, p = [\d.e-]+: more than chance explains",
        ],
        strict=True,
    ):
        assert re.fullmatch(expected, line)
    assert lines[3] == "e: the same nDCG@10 as first stage"
