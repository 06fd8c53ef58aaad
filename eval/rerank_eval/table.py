"""The table of papers: a row for each system, a column for each dataset, in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.console import Console

from rerank_eval.measures import MAIN_MEASURE
from rerank_eval.report import Report, markdown_table
from rerank_eval.run_files import write_text
from rerank_eval.statistics import SIGNIFICANT

#: Marks of significant differences from the first row, and from the first system.
_MARKS, _LATEX_MARKS = ("†", "‡"), (r"$^{\dagger}$", r"$^{\ddagger}$")


class Cell(NamedTuple):
    """A system on one dataset.

    Attributes:
        mean: mean nDCG@10 over the judged queries.
        p: of the paired t-test against the first row, adjusted by Holm over all systems; None for the first row.
        p_first_system: the same against the first system; None for it, and where there are no others.
    """

    mean: float
    p: float | None
    p_first_system: float | None


def write_table(reports: Sequence[Report], out: Path, console: Console) -> None:
    """Writes the table as report.md, table.tex and table.csv into the folder `out`, and prints it.

    Raises:
        ConfigError: a file cannot be written.
    """
    text = as_markdown(reports)
    write_text(out / "report.md", f"# {len(reports)} datasets\n\n{text}\n")
    write_text(out / "table.tex", as_latex(reports))
    write_text(out / "table.csv", as_csv(reports))
    console.print(text, soft_wrap=True, markup=False)
    console.print(f"table of all datasets: {out / 'report.md'}, table.tex, table.csv")


def as_markdown(reports: Sequence[Report]) -> str:
    """The table, with what stands behind each column below it."""
    head, *rows = _rows(reports, _MARKS)
    titles = [f"{report.dataset}: {' '.join([f'{report.title}.', *report.notes])}" for report in reports]
    return "\n\n".join([markdown_table(head, rows), _caption(reports, _MARKS), "\n".join(titles)])


def as_latex(reports: Sequence[Report]) -> str:
    """The table in LaTeX, for the package booktabs."""
    head, *rows = (" & ".join(row) + r" \\" for row in _rows(reports, _LATEX_MARKS, _for_latex))
    columns = "l" + "r" * (len(reports) + 1)
    lines = "\n".join([r"\toprule", head, r"\midrule", *rows, r"\bottomrule"])
    return f"\\begin{{tabular}}{{{columns}}}\n{lines}\n\\end{{tabular}}\n% {_caption(reports, _LATEX_MARKS)}\n"


def as_csv(reports: Sequence[Report]) -> str:
    """One row for each system and dataset."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["dataset", "system", *Cell._fields])
    for report in reports:
        table.writerows([report.dataset, name, *cell] for name, cell in _cells(report).items())
    return text.getvalue()


def _cells(report: Report) -> Mapping[str, Cell]:
    """By system, the first stage before them."""
    found = [{other.name: p for other, _, p in compared} for _, compared in report.compared]
    first_row, first_system = found[0], found[1] if found[1:] else {}
    return {
        result.name: Cell(result.metrics.mean[MAIN_MEASURE], first_row.get(result.name), first_system.get(result.name))
        for result in report.results
    }


def _rows(
    reports: Sequence[Report], marks: tuple[str, str], escaped: Callable[[str], str] = str
) -> Iterator[list[str]]:
    """The head, and the cells of each system: its name, one for each dataset, and the mean over all of them."""
    yield ["system", *(escaped(report.dataset) for report in reports), "mean"]
    columns = [_cells(report) for report in reports]
    for name in dict.fromkeys(name for column in columns for name in column):
        found = [column.get(name) for column in columns]
        means = [cell.mean for cell in found if cell]
        mean = f"{fmean(means):.4f}" if len(means) == len(found) else "–"
        yield [escaped(name), *(_text(cell, marks) if cell else "–" for cell in found), mean]


def _text(cell: Cell, marks: tuple[str, str]) -> str:
    found = zip(marks, (cell.p, cell.p_first_system), strict=True)
    return f"{cell.mean:.4f}" + "".join(mark for mark, p in found if p is not None and p < SIGNIFICANT)


def _caption(reports: Sequence[Report], marks: tuple[str, str]) -> str:
    first, *systems = (result.name for result in reports[0].results)
    first_system = f", {marks[1]} against {systems[0]}" if systems[1:] else ""
    return (
        f"{MAIN_MEASURE}; {marks[0]} p < {SIGNIFICANT} against {first}{first_system}: paired t-tests, corrected by "
        "Holm over the systems of a dataset."
    )


def _for_latex(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "&%#_$" else letter for letter in text)
