"""Writes the report of an evaluation (measures, significance, cost), and tables for papers.

A table has a row for each system, and a column for each measure or dataset.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeAlias

from rich.console import Console

from rerank_eval.measures import COST_COLUMNS, MAIN_MEASURE, MetricValues
from rerank_eval.runs import write_result
from rerank_eval.statistics import SIGNIFICANT, Comparison, compare, confidence_interval, holm

#: Marks of significant differences: from the first row, and from the first system.
_MARKS = ("†", "‡")
#: The same marks in LaTeX.
_LATEX_MARKS = (r"$^{\dagger}$", r"$^{\ddagger}$")


@dataclass(frozen=True, slots=True)
class SystemResult:
    """The result of one system: its measures and its cost.

    Attributes:
        cost: column of the report → value; empty if nothing was timed.
        warnings: sentences on what limits the figures, see `rerank_eval.measures.warnings`.
        fingerprint: settings that decide the system's responses, with its model and the model's hash.
    """

    name: str
    metrics: MetricValues
    cost: Mapping[str, float] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    fingerprint: Mapping[str, object] = field(default_factory=dict)


#: A result, its comparison with a reference, and the p-value of the t-test, adjusted by Holm.
Compared: TypeAlias = tuple[SystemResult, Comparison, float]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one dataset, as the report shows them.

    Attributes:
        dataset: the dataset's name; `title` is the report's heading.
        results: the first stage's result, then the results of all systems.
        upper_bound: result of the best order of the same candidates; it is not compared.
        rel: least grade that RR, AP and R count as relevant.
        judged_queries: number of all judged queries; the means may be over fewer.
        notes: sentences on queries and candidates without judgements, and on judgements without queries or candidates.
    """

    dataset: str
    title: str
    results: Sequence[SystemResult]
    upper_bound: SystemResult
    rel: int
    judged_queries: int
    notes: Sequence[str] = ()

    @property
    def measures(self) -> list[str]:
        return list(self.upper_bound.metrics.mean)

    def compared(self, measure: str = MAIN_MEASURE) -> Iterator[tuple[SystemResult, list[Compared]]]:
        """Pairs: a reference and its `comparisons`. All systems are compared with the first stage; the other systems
        also with the first system."""
        first_stage, *systems = self.results
        yield first_stage, comparisons([first_stage, *systems], measure)
        if systems[1:]:
            yield systems[0], comparisons(systems, measure)


def comparisons(results: Sequence[SystemResult], measure: str = MAIN_MEASURE) -> list[Compared]:
    """Compares every other result with the first result, over the same queries."""
    reference, others = results[0], results[1:]
    compared = [compare(other.metrics.values(measure), reference.metrics.values(measure)) for other in others]
    return list(zip(others, compared, holm([comparison.p for comparison in compared]), strict=True))


def write_report(report: Report, out: Path, console: Console) -> None:
    """Writes report.md into the folder `out`, and prints its first part.

    Raises:
        ConfigError: the file cannot be written.
    """
    head = [
        f"# {_plain(report.title)}",
        _systems(report.results),
        *(f"**{note}**" for note in report.notes),
        _measures(report),
        *(_comparison(reference, compared) for reference, compared in report.compared() if compared),
        *(f"{row.name}: {fact}" for row in report.results for fact in row.warnings),
    ]
    rest = [_cost(report.results)]
    former = write_result(out / "report.md", _joined([*head, *rest]) + "\n")
    console.print(_joined(head), soft_wrap=True, markup=False)
    console.print(f"report: {out / 'report.md'}{f'; the one before it is {former}' if former else ''}")
    for line in verdicts(report):
        console.print(line, soft_wrap=True, markup=False)


def verdicts(report: Report) -> Iterator[str]:
    """For each system, a sentence on its gain or loss against the first stage, and whether that may be chance."""
    first_stage, *_ = report.results
    for system, comparison, p in comparisons(report.results):
        change = abs(comparison.difference)
        if not change:
            yield f"{system.name}: the same {MAIN_MEASURE} as {first_stage.name}"
            continue
        word = "gains" if comparison.difference > 0 else "loses"
        measured = f"{system.name} {word} {change:.4f} {MAIN_MEASURE} against {first_stage.name}, p = {p:.2g}"
        if p < SIGNIFICANT:
            yield f"{measured}: more than chance explains"
        else:
            queries = f"over {comparison.queries} queries"
            yield f"{measured}: {queries} this may be chance, so nothing was shown to be gained or lost"


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part)


def _systems(results: Sequence[SystemResult]) -> str:
    """The model of each system; its hash is in measures.json."""
    lines = []
    for result in results:
        settings = result.fingerprint
        parts = [
            f"{label}{_plain(str(settings[name]))}"
            for name, label in (("ranker", ""), ("model_id", "model "))
            if settings.get(name)
        ]
        if parts:
            lines.append(f"- **{result.name}**: {', '.join(parts)}")
    return "\n".join(lines)


def _measures(report: Report) -> str:
    """All results, with the upper bound at the end."""
    names = report.measures
    rows = [
        [
            result.name,
            *(f"{result.metrics.mean[name]:.4f}" for name in names),
            _range(confidence_interval(result.metrics.values())),
        ]
        for result in (*report.results, report.upper_bound)
    ]
    table = markdown_table(["system", *names, f"{MAIN_MEASURE}, 95 % interval"], rows)
    measured = len(report.upper_bound.metrics.per_query)
    counted = f"Means over {measured:,} of {report.judged_queries:,} judged queries."
    return f"{counted} RR, AP and R count grade {report.rel} and above as relevant (--rel).\n\n{table}"


def _comparison(reference: SystemResult, compared: Sequence[Compared]) -> str:
    """The differences from a reference, with p-values corrected by Holm if there are several comparisons."""
    several = len(compared) > 1
    rows = [
        [
            other.name,
            f"{c.difference:+.4f}",
            _range(c.interval, sign="+"),
            format_p(c.p),
            *([format_p(adjusted)] if several else []),
            f"{c.wins}/{c.ties}/{c.losses}",
        ]
        for other, c, adjusted in compared
    ]
    head = ["system", "difference", "95 % interval", "p (t-test)", *(["p (Holm)"] if several else [])]
    corrected = f"; p (Holm) is corrected for {len(rows)} comparisons" if several else ""
    return (
        f"## {MAIN_MEASURE} compared with {reference.name}\n\n"
        f"{markdown_table([*head, 'wins/ties/losses'], rows)}\n\n"
        f"Paired, two-sided t-test{'s' if several else ''} over {compared[0][1].queries} queries{corrected}. A "
        "difference that is not significant does not mean that the systems are equal."
    )


def _cost(results: Sequence[SystemResult]) -> str:
    rows = [
        [result.name, *(f"{value:,.{COST_COLUMNS[name]}f}" for name, value in result.cost.items())]
        for result in results
        if result.cost
    ]
    if not rows:
        return ""
    return (
        f"## Latency and cost\n\n{markdown_table(['system', *COST_COLUMNS], rows)}\n\n"
        "Latency is measured at the caller and includes the network. The other columns are means per "
        "query: prefill is what the model reads at once, decode what it writes token by token."
    )


def _plain(text: str) -> str:
    """The text with a backslash before each character of Markdown's markup; `markdown_table` escapes the pipe."""
    return re.sub(r"([\\`*_\[\]<>#&!~])", r"\\\1", text)


def _range(ends: tuple[float, float], sign: str = "") -> str:
    return f"{ends[0]:{sign}.4f} to {ends[1]:{sign}.4f}"


def format_p(value: float) -> str:
    """A p-value with four decimal places, or `< .0001`."""
    return "< .0001" if value < 0.0001 else f"{value:.4f}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with text in the first column and right-aligned numbers in the others."""
    align = ["---" if column == 0 else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, align, *rows))


# --- tables of papers


class Cell(NamedTuple):
    """A system on one dataset, by one measure.

    Attributes:
        mean: the mean over the judged queries.
        p: p-value of the paired t-test against the first row, adjusted by Holm over all systems; None for that row.
        p_first_system: the adjusted p-value against the first system; None for that system, and if it is the only one.
    """

    mean: float
    p: float | None
    p_first_system: float | None


#: Head of a column (a measure or a dataset) → system → cell.
Table: TypeAlias = Mapping[str, Mapping[str, Cell]]


def write_tables(reports: Sequence[Report], out: Path, console: Console) -> None:
    """Writes table.tex and table.csv into the folder `out`.

    For several datasets it also writes report.md, and prints the first table of that file.

    Raises:
        ConfigError: a file cannot be written.
    """
    tables = list(_tables(reports))
    if len(reports) > 1:
        first, *others = (_as_markdown(measure, table, reports) for measure, table in tables)
        titles = "\n".join(f"{report.dataset}: {' '.join([f'{report.title}.', *report.notes])}" for report in reports)
        write_result(out / "report.md", "\n\n".join([f"# {len(reports)} datasets", first, titles, *others]) + "\n")
        console.print(f"{first}\n\n{titles}", soft_wrap=True, markup=False)
        console.print(f"report of all datasets: {out / 'report.md'}")
    write_result(out / "table.tex", "\n".join(_as_latex(measure, table, reports) for measure, table in tables))
    write_result(out / "table.csv", _as_csv(reports))


def _tables(reports: Sequence[Report]) -> Iterator[tuple[str, Table]]:
    """Pairs: a measure and its table of all datasets. For one dataset: "" and one table of all measures."""
    if len(reports) == 1:
        yield "", {measure: _cells(reports[0], measure) for measure in reports[0].measures}
        return
    for names in zip(*(report.measures for report in reports), strict=True):
        columns = {report.dataset: _cells(report, name) for report, name in zip(reports, names, strict=True)}
        yield ", ".join(dict.fromkeys(names)), columns  # R counts other grades in one dataset than in another


def _as_markdown(measure: str, table: Table, reports: Sequence[Report]) -> str:
    head, *rows = _rows(measure, table, _MARKS)
    return f"{markdown_table(head, rows)}\n\n{_caption(measure, reports, _MARKS)}"


def _as_latex(measure: str, table: Table, reports: Sequence[Report]) -> str:
    """The table in LaTeX, for the package booktabs."""
    rows = list(_rows(measure, table, _LATEX_MARKS, _for_latex))
    head, *lines = (" & ".join(row) + r" \\" for row in rows)
    body = "\n".join([r"\toprule", head, r"\midrule", *lines, r"\bottomrule"])
    columns = "l" + "r" * (len(rows[0]) - 1)
    return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n% {_caption(measure, reports, _LATEX_MARKS)}\n"


def _as_csv(reports: Sequence[Report]) -> str:
    """One row for each dataset, measure and system."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["dataset", "measure", "system", *Cell._fields])
    for report in reports:
        for measure in report.measures:
            cells = _cells(report, measure)
            table.writerows([report.dataset, measure, name, *cell] for name, cell in cells.items())
    return text.getvalue()


def _cells(report: Report, measure: str) -> Mapping[str, Cell]:
    """System → cell, beginning with the first stage."""
    found = [{other.name: p for other, _, p in compared} for _, compared in report.compared(measure)]
    first_row, first_system = found[0], found[1] if found[1:] else {}
    return {
        result.name: Cell(result.metrics.mean[measure], first_row.get(result.name), first_system.get(result.name))
        for result in report.results
    }


def _rows(
    measure: str, table: Table, marks: tuple[str, str], escaped: Callable[[str], str] = str
) -> Iterator[list[str]]:
    """The head, then a row for each system: its name, its cells and, in a table of datasets, the mean over them."""
    yield ["system", *map(escaped, table), *(["mean"] if measure else [])]
    for name in dict.fromkeys(name for column in table.values() for name in column):
        cells = [column.get(name) for column in table.values()]
        means = [cell.mean for cell in cells if cell]
        mean = f"{fmean(means):.4f}" if len(means) == len(cells) else "–"
        yield [escaped(name), *(_text(cell, marks) for cell in cells), *([mean] if measure else [])]


def _text(cell: Cell | None, marks: tuple[str, str]) -> str:
    if cell is None:
        return "–"
    found = zip(marks, (cell.p, cell.p_first_system), strict=True)
    return f"{cell.mean:.4f}" + "".join(mark for mark, p in found if p is not None and p < SIGNIFICANT)


def _caption(measure: str, reports: Sequence[Report], marks: tuple[str, str]) -> str:
    first, *systems = (result.name for result in reports[0].results)
    first_system = f", {marks[1]} against {systems[0]}" if systems[1:] else ""
    return (
        f"{measure or reports[0].title}; {marks[0]} p < {SIGNIFICANT} against {first}{first_system}: paired t-tests, "
        "corrected by Holm over the systems of a dataset."
    )


def _for_latex(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "&%#_$" else letter for letter in text)
