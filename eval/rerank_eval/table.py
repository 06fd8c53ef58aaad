"""The table of papers: a row for each system, a column for each dataset, from the summaries that evaluations wrote.

python -m rerank_eval.table "TREC DL 2019=results/dl19" "Cranfield=results/cranfield" …
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console

from rerank.commands.app import CommandApp, example_in
from rerank.commands.run import run
from rerank.errors import CollectionError, ConfigError
from rerank_eval.measures import MAIN_MEASURE
from rerank_eval.report import Report, markdown_table
from rerank_eval.results import SystemResult
from rerank_eval.run_files import write_text
from rerank_eval.statistics import confidence_interval

SUMMARY_FILE = "summary.json"
_SIGNIFICANT = 0.05
#: Marks of significant differences from the first row, and from the first system.
_MARKS, _LATEX_MARKS = ("†", "‡"), (r"$^{\dagger}$", r"$^{\ddagger}$")

app = CommandApp()


@dataclass(frozen=True, slots=True)
class Row:
    """A system on one dataset.

    Attributes:
        mean: mean nDCG@10 over the judged queries.
        half_width: half the width of the 95 % confidence interval of `mean`; None for a single query.
        p: of the paired t-test against the first row, adjusted by Holm over all systems; None for the first row.
        p_first_system: the same against the first system; None for it, and where there are no others.
        queries_per_s: None if the system was not timed.
    """

    mean: float
    half_width: float | None
    p: float | None
    p_first_system: float | None
    queries_per_s: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """An evaluation on one dataset. `rows` are by system, the first stage before them.

    `notes` are sentences about the judgements that change how the figures are read.
    """

    dataset: str
    title: str
    queries: int
    rows: Mapping[str, Row]
    notes: Sequence[str] = ()


def summarize(report: Report) -> Summary:
    """The figures of a report by which its systems are compared over datasets."""
    references = [{other.name: p for other, _, p in compared} for _, compared in report.compared]
    first_row, first_system = references[0], references[1] if references[1:] else {}
    rows = {
        result.name: _row(result, first_row.get(result.name), first_system.get(result.name))
        for result in report.results
    }
    queries = len(report.results[0].metrics.per_query)
    return Summary(report.dataset, report.title, queries, rows, tuple(report.notes))


def write_summary(summary: Summary, out: Path) -> None:
    """Writes summary.json into the folder `out`. Raises: ConfigError when it cannot be written."""
    write_text(out / SUMMARY_FILE, json.dumps(asdict(summary), indent=2) + "\n")


def read_summary(folder: Path) -> Summary:
    """Reads summary.json of an evaluation's folder. Raises: CollectionError when there is none or it cannot be read."""
    path = folder / SUMMARY_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = {name: Row(**row) for name, row in content["rows"].items()}
        return Summary(**{**content, "rows": rows, "notes": tuple(content["notes"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CollectionError(
            f"{path} is not a summary of an evaluation ({error}); give the --out folder of one"
        ) from error


def write_table(summaries: Sequence[Summary], out: Path, console: Console) -> None:
    """Writes the table as report.md, table.tex and table.csv into the folder `out`, and prints it.

    Raises:
        ConfigError: a file cannot be written.
    """
    text = as_markdown(summaries)
    write_text(out / "report.md", f"# {len(summaries)} datasets\n\n{text}\n")
    write_text(out / "table.tex", as_latex(summaries))
    write_text(out / "table.csv", as_csv(summaries))
    console.print(text, soft_wrap=True, markup=False)
    console.print(f"table of all datasets: {out / 'report.md'}, table.tex, table.csv")


def as_markdown(summaries: Sequence[Summary]) -> str:
    """The table, with what stands behind each column below it."""
    head, *rows = _rows(summaries, _MARKS)
    titles = [f"{summary.dataset}: {' '.join([f'{summary.title}.', *summary.notes])}" for summary in summaries]
    return "\n\n".join([markdown_table(head, rows), _caption(summaries, _MARKS), "\n".join(titles)])


def as_latex(summaries: Sequence[Summary]) -> str:
    """The table in LaTeX, for the package booktabs."""
    head, *rows = (" & ".join(row) + r" \\" for row in _rows(summaries, _LATEX_MARKS, _for_latex))
    columns = "l" + "r" * (len(summaries) + 1)
    lines = "\n".join([r"\toprule", head, r"\midrule", *rows, r"\bottomrule"])
    return f"\\begin{{tabular}}{{{columns}}}\n{lines}\n\\end{{tabular}}\n% {_caption(summaries, _LATEX_MARKS)}\n"


def as_csv(summaries: Sequence[Summary]) -> str:
    """One row for each system and dataset, with all figures."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["dataset", "system", "queries", *Row.__dataclass_fields__])
    for summary in summaries:
        for name, row in summary.rows.items():
            table.writerow([summary.dataset, name, summary.queries, *asdict(row).values()])
    return text.getvalue()


def _rows(
    summaries: Sequence[Summary], marks: tuple[str, str], escaped: Callable[[str], str] = str
) -> Iterator[list[str]]:
    """The head, and the cells of each system: its name, one for each dataset, and the mean over all of them."""
    yield ["system", *(escaped(summary.dataset) for summary in summaries), "mean"]
    for name in dict.fromkeys(name for summary in summaries for name in summary.rows):
        found = [summary.rows.get(name) for summary in summaries]
        means = [row.mean for row in found if row]
        mean = f"{fmean(means):.4f}" if len(means) == len(found) else "–"
        yield [escaped(name), *(_cell(row, marks) if row else "–" for row in found), mean]


def _cell(row: Row, marks: tuple[str, str]) -> str:
    found = zip(marks, (row.p, row.p_first_system), strict=True)
    return f"{row.mean:.4f}" + "".join(mark for mark, p in found if p is not None and p < _SIGNIFICANT)


def _caption(summaries: Sequence[Summary], marks: tuple[str, str]) -> str:
    first, *others = summaries[0].rows
    first_system = f", {marks[1]} against {others[0]}" if others[1:] else ""
    return (
        f"{MAIN_MEASURE}; {marks[0]} p < {_SIGNIFICANT} against {first}{first_system}: paired t-tests, corrected by "
        "Holm over the systems of a dataset."
    )


def _for_latex(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "&%#_$" else letter for letter in text)


def _row(result: SystemResult, p: float | None, p_first_system: float | None) -> Row:
    low, high = confidence_interval(result.metrics.values())
    return Row(
        mean=result.metrics.mean[MAIN_MEASURE],
        half_width=(high - low) / 2 if math.isfinite(high - low) else None,
        p=p,
        p_first_system=p_first_system,
        queries_per_s=result.efficiency.queries_per_s if result.efficiency else None,
    )


@app.command(example=example_in(__doc__))
def show(
    folders: Annotated[list[str], typer.Argument(help="DATASET=FOLDER with the --out of an evaluation.")],
    form: Annotated[str, typer.Option("--format", help="markdown, latex or csv.")] = "markdown",
) -> None:
    """Print a table of systems and datasets."""
    forms = {"markdown": as_markdown, "latex": as_latex, "csv": as_csv}
    if form not in forms:
        raise ConfigError(f"--format {form!r} is not one of {', '.join(forms)}")
    summaries = []
    for argument in folders:
        dataset, equals, folder = argument.partition("=")
        if not equals:
            raise ConfigError(f"{argument!r}: expected DATASET=FOLDER")
        summaries.append(replace(read_summary(Path(folder)), dataset=dataset))
    print(forms[form](summaries), end="" if form == "csv" else "\n")


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
