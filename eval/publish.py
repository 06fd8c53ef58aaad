"""The last step of both commands: the table on the screen, the report and its figures in the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from eval.experiment import Result
from eval.output import print_table, write_text
from eval.plots import draw
from eval.report import ByOrder, comparisons, html, markdown, shown_p


@dataclass(frozen=True, slots=True)
class Choices:
    """How the report is made: margin of the non-inferiority test (0: none), seed of the permutation test, figures."""

    margin: float
    seed: int
    plots: bool


def publish(
    title: str,
    results: Sequence[Result],
    bound: Result,
    by_order: ByOrder,
    out: Path,
    settings: Mapping[str, object],
    choices: Choices,
    console: Console,
) -> None:
    """See `markdown` for what is what. Raises: ConfigError when something cannot be written."""
    drawn = draw(results, out) if choices.plots else []
    text = markdown(title, results, bound, by_order, settings, choices.margin, choices.seed, drawn)
    write_text(out / "report.md", text)
    write_text(out / "report.html", html(text))
    print_table(console, title, {result.name: result.report for result in (*results, bound)})
    for other, c, p in comparisons(results, choices.seed):
        low, high = c.interval
        console.print(
            f"{other.name} against {results[0].name}: {c.difference:+.4f} ({low:+.4f} to {high:+.4f}), "
            f"p (Holm) {shown_p(p)}, {c.wins}/{c.ties}/{c.losses} wins/ties/losses"
        )
    console.print(f"report: {out / 'report.md'}")
