"""Systems × datasets, from what evaluations have left behind.

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

from rerank.commands.cli import run
from rerank.errors import CollectionError
from rerank_eval.experiment import Result
from rerank_eval.measures import MAIN
from rerank_eval.report import comparisons, markdown_table, shown_p
from rerank_eval.statistics import interval

SUMMARY_FILE = "summary.json"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Row:
    """A system on one dataset.

    Attributes:
        mean: nDCG@10 over the judged queries.
        half_width: of the 95 % interval of `mean`; None for a single query.
        p: against the first system, paired t-test, Holm over all systems; None for the first one.
        queries_per_s: None where nothing was asked.
    """

    mean: float
    half_width: float | None
    p: float | None
    queries_per_s: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """An evaluation of several systems on one dataset; `rows` by system, the first is what the others are held to."""

    dataset: str
    title: str
    queries: int
    rows: Mapping[str, Row]


def summary_of(dataset: str, title: str, results: Sequence[Result], seed: int = 0) -> Summary:
    """The first result is what the others are compared with."""
    adjusted = {other.name: p for other, _, p in comparisons(results, seed)}
    rows = {result.name: _row(result, adjusted.get(result.name)) for result in results}
    return Summary(dataset, title, len(results[0].report.per_query), rows)


def as_json(summary: Summary) -> str:
    return json.dumps(asdict(summary), indent=2) + "\n"


def read_summary(folder: Path) -> Summary:
    """Raises: CollectionError when `folder` holds no summary of an evaluation."""
    path = folder / SUMMARY_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Summary(**{**found, "rows": {name: Row(**row) for name, row in found["rows"].items()}})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CollectionError(f"{path} is no summary of an evaluation ({error}); give its --out") from error


def table(columns: Mapping[str, Sequence[Summary]]) -> str:
    """In Markdown: a row a system, three columns a dataset. Several summaries of one dataset stand below each other."""
    parts = ("nDCG@10, 95 %", "p", "queries/s")
    names = dict.fromkeys(name for summaries in columns.values() for one in summaries for name in one.rows)
    cells = {dataset: _cells(summaries) for dataset, summaries in columns.items()}
    head = ["system", *(f"{dataset}: {part}" for dataset in columns for part in parts)]
    rows = [[name, *(cell for own in cells.values() for cell in own.get(name, ["–"] * len(parts)))] for name in names]
    titles = [
        f"{dataset}: " + "; ".join(f"{one.title}, p against {next(iter(one.rows))}" for one in summaries) + "."
        for dataset, summaries in columns.items()
    ]
    return (
        markdown_table(head, rows)
        + "\n\n"
        + "\n".join(titles)
        + "\np: paired t-test, Holm over the systems that are held to the same one."
    )


def _cells(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    return {name: _shown(row) for summary in summaries for name, row in summary.rows.items()}


def _row(result: Result, p: float | None) -> Row:
    low, high = interval(result.report.values())
    half = (high - low) / 2 if math.isfinite(high - low) else None
    return Row(result.report.mean[MAIN], half, p, result.efficiency.queries_per_s if result.efficiency else None)


def _shown(row: Row) -> list[str]:
    spread = "" if row.half_width is None else f" ± {row.half_width:.3f}"
    speed = "–" if row.queries_per_s is None else f"{row.queries_per_s:.3g}"
    return [f"{row.mean:.4f}{spread}", "–" if row.p is None else shown_p(row.p), speed]


@app.command()
def show(
    folders: Annotated[
        list[str], typer.Argument(help="NAME=FOLDER, the --out of an evaluation; one name may have several folders.")
    ],
) -> None:
    """Print systems × datasets in Markdown."""
    columns: dict[str, list[Summary]] = {}
    for given in folders:
        name, equals, folder = given.partition("=")
        if not equals:
            raise CollectionError(f"{given!r}: expected NAME=FOLDER")
        columns.setdefault(name, []).append(read_summary(Path(folder)))
    print(table(columns))


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
