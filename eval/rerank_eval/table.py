"""Table of systems and datasets, from the summaries that evaluations wrote.

python -m rerank_eval.table "TREC DL 2019=results/dl19" "Cranfield=results/cranfield" …
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands.app import CommandApp, example_in
from rerank.commands.run import run
from rerank.errors import CollectionError
from rerank_eval.measures import MAIN_MEASURE
from rerank_eval.report import comparisons, format_p, markdown_table
from rerank_eval.results import SystemResult
from rerank_eval.statistics import confidence_interval

SUMMARY_FILE = "summary.json"

app = CommandApp()


@dataclass(frozen=True, slots=True)
class Row:
    """A system on one dataset.

    Attributes:
        mean: mean nDCG@10 over the judged queries.
        half_width: half the width of the 95 % confidence interval of `mean`; None for a single query.
        p: of the paired t-test against the first system, adjusted by Holm over all systems; None for the first one.
        queries_per_s: None if the system was not timed.
    """

    mean: float
    half_width: float | None
    p: float | None
    queries_per_s: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """An evaluation on one dataset. `rows` are by system; the others are compared with the first.

    `notes` are sentences about the judgements that change how the figures are read.
    """

    dataset: str
    title: str
    queries: int
    rows: Mapping[str, Row]
    notes: Sequence[str] = ()


def summarize(
    dataset: str, title: str, results: Sequence[SystemResult], seed: int = 0, notes: Sequence[str] = ()
) -> Summary:
    """The summary of an evaluation; the other results are compared with the first. `seed`: of the permutation test."""
    adjusted = {other.name: p for other, _, p in comparisons(results, seed)}
    rows = {result.name: _row(result, adjusted.get(result.name)) for result in results}
    return Summary(dataset, title, len(results[0].metrics.per_query), rows, tuple(notes))


def summary_json(summary: Summary) -> str:
    return json.dumps(asdict(summary), indent=2) + "\n"


def read_summary(folder: Path) -> Summary:
    """Reads summary.json of an evaluation's folder. Raises: CollectionError when there is none or it cannot be read."""
    path = folder / SUMMARY_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = {name: Row(**row) for name, row in content["rows"].items()}
        return Summary(**{**content, "rows": rows, "notes": tuple(content.get("notes", ()))})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CollectionError(
            f"{path} is no summary of an evaluation ({error}); give the --out folder of one"
        ) from error


def table(columns: Mapping[str, Sequence[Summary]]) -> str:
    """A Markdown table with one row per system and three columns per dataset.

    Args:
        columns: by dataset, its summaries; the rows of several summaries stand below each other.
    """
    parts = ("nDCG@10, 95 %", "p", "queries/s")
    names = dict.fromkeys(name for summaries in columns.values() for summary in summaries for name in summary.rows)
    cells = {dataset: _cells(summaries) for dataset, summaries in columns.items()}
    head = ["system", *(f"{dataset}: {part}" for dataset in columns for part in parts)]
    rows = [
        [name, *(cell for by_name in cells.values() for cell in by_name.get(name, ["–"] * len(parts)))]
        for name in names
    ]
    titles = [
        f"{dataset}: "
        + "; ".join(f"{s.title}, compared with {next(iter(s.rows))}" for s in summaries)
        + "."
        + "".join(f" {note}" for summary in summaries for note in summary.notes)
        for dataset, summaries in columns.items()
    ]
    return (
        markdown_table(head, rows)
        + "\n\n"
        + "\n".join(titles)
        + "\np: paired t-test, adjusted by Holm over the systems that are compared with the same one."
    )


def _cells(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    return {name: _row_cells(row) for summary in summaries for name, row in summary.rows.items()}


def _row(result: SystemResult, p: float | None) -> Row:
    low, high = confidence_interval(result.metrics.values())
    half = (high - low) / 2 if math.isfinite(high - low) else None
    return Row(
        result.metrics.mean[MAIN_MEASURE], half, p, result.efficiency.queries_per_s if result.efficiency else None
    )


def _row_cells(row: Row) -> list[str]:
    spread = "" if row.half_width is None else f" ± {row.half_width:.3f}"
    speed = "–" if row.queries_per_s is None else f"{row.queries_per_s:.3g}"
    return [f"{row.mean:.4f}{spread}", "–" if row.p is None else format_p(row.p), speed]


@app.command(example=example_in(__doc__))
def show(
    folders: Annotated[
        list[str],
        typer.Argument(help="DATASET=FOLDER with the --out of an evaluation; a dataset may have several folders."),
    ],
) -> None:
    """Print a table of systems and datasets in Markdown."""
    columns: dict[str, list[Summary]] = {}
    for argument in folders:
        dataset, equals, folder = argument.partition("=")
        if not equals:
            raise CollectionError(f"{argument!r}: expected DATASET=FOLDER")
        columns.setdefault(dataset, []).append(read_summary(Path(folder)))
    print(table(columns))


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
