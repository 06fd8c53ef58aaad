"""The tables of papers: a row for each system; columns are the measures of a dataset, or several datasets."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.console import Console

from rerank_eval.report import Report, markdown_table
from rerank_eval.run_files import write_result
from rerank_eval.statistics import SIGNIFICANT

#: Marks of significant differences from the first row, and from the first system.
_MARKS, _LATEX_MARKS = ("†", "‡"), (r"$^{\dagger}$", r"$^{\ddagger}$")


class Cell(NamedTuple):
    """A system on one dataset, by one measure.

    Attributes:
        mean: over the judged queries.
        p: of the paired t-test against the first row, adjusted by Holm over all systems; None for the first row.
        p_first_system: the same against the first system; None for it, and where there are no others.
    """

    mean: float
    p: float | None
    p_first_system: float | None


class Table(NamedTuple):
    """One table.

    Attributes:
        measure: of all cells; empty for a table of one dataset, whose columns are measures.
        columns: cells by system, by the head of their column.
    """

    measure: str
    columns: Mapping[str, Mapping[str, Cell]]


def write_tables(reports: Sequence[Report], out: Path, console: Console) -> None:
    """Writes table.tex and table.csv into the folder `out`; for several datasets also report.md, whose first table it
    prints.

    Raises:
        ConfigError: a file cannot be written.
    """
    if len(reports) > 1:
        first, *others = (as_markdown(table, reports) for table in _tables(reports))
        titles = "\n".join(f"{report.dataset}: {' '.join([f'{report.title}.', *report.notes])}" for report in reports)
        write_result(out / "report.md", "\n\n".join([f"# {len(reports)} datasets", first, titles, *others]) + "\n")
        console.print(f"{first}\n\n{titles}", soft_wrap=True, markup=False)
        console.print(f"report of all datasets: {out / 'report.md'}")
    write_result(out / "table.tex", "\n".join(as_latex(table, reports) for table in _tables(reports)))
    write_result(out / "table.csv", as_csv(reports))


def _tables(reports: Sequence[Report]) -> Iterator[Table]:
    """One table of all measures for one dataset, otherwise a table of all datasets for each measure."""
    if len(reports) == 1:
        yield Table("", {measure: _cells(reports[0], measure) for measure in reports[0].measures})
        return
    for names in zip(*(report.measures for report in reports), strict=True):
        columns = {report.dataset: _cells(report, name) for report, name in zip(reports, names, strict=True)}
        yield Table(", ".join(dict.fromkeys(names)), columns)  # R counts other grades in one dataset than in another


def as_markdown(table: Table, reports: Sequence[Report]) -> str:
    head, *rows = _rows(table, _MARKS)
    return f"{markdown_table(head, rows)}\n\n{_caption(table, reports, _MARKS)}"


def as_latex(table: Table, reports: Sequence[Report]) -> str:
    """The table in LaTeX, for the package booktabs."""
    rows = list(_rows(table, _LATEX_MARKS, _for_latex))
    head, *lines = (" & ".join(row) + r" \\" for row in rows)
    body = "\n".join([r"\toprule", head, r"\midrule", *lines, r"\bottomrule"])
    columns = "l" + "r" * (len(rows[0]) - 1)
    return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n% {_caption(table, reports, _LATEX_MARKS)}\n"


def as_csv(reports: Sequence[Report]) -> str:
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
    """By system, the first stage before them."""
    found = [{other.name: p for other, _, p in compared} for _, compared in report.compared(measure)]
    first_row, first_system = found[0], found[1] if found[1:] else {}
    return {
        result.name: Cell(result.metrics.mean[measure], first_row.get(result.name), first_system.get(result.name))
        for result in report.results
    }


def _rows(table: Table, marks: tuple[str, str], escaped: Callable[[str], str] = str) -> Iterator[list[str]]:
    """The head, and the cells of each system: its name, one for each column, and the mean over all datasets."""
    columns = list(table.columns.values())
    yield ["system", *map(escaped, table.columns), *(["mean"] if table.measure else [])]
    for name in dict.fromkeys(name for column in columns for name in column):
        found = [column.get(name) for column in columns]
        means = [cell.mean for cell in found if cell]
        mean = f"{fmean(means):.4f}" if len(means) == len(found) else "–"
        cells = (_text(cell, marks) if cell else "–" for cell in found)
        yield [escaped(name), *cells, *([mean] if table.measure else [])]


def _text(cell: Cell, marks: tuple[str, str]) -> str:
    found = zip(marks, (cell.p, cell.p_first_system), strict=True)
    return f"{cell.mean:.4f}" + "".join(mark for mark, p in found if p is not None and p < SIGNIFICANT)


def _caption(table: Table, reports: Sequence[Report], marks: tuple[str, str]) -> str:
    first, *systems = (result.name for result in reports[0].results)
    first_system = f", {marks[1]} against {systems[0]}" if systems[1:] else ""
    of = table.measure or reports[0].title
    return (
        f"{of}; {marks[0]} p < {SIGNIFICANT} against {first}{first_system}: paired t-tests, corrected by Holm over the "
        "systems of a dataset."
    )


def _for_latex(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "&%#_$" else letter for letter in text)
