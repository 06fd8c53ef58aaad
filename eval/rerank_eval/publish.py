"""The last step of both commands: the table on the screen, the report and its figures in the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rerank.errors import ConfigError
from rerank_eval.experiment import Result
from rerank_eval.output import print_table, write_text
from rerank_eval.plots import draw
from rerank_eval.report import ByOrder, comparisons, html, markdown, order_lines, shown_p
from rerank_eval.table import SUMMARY_FILE, Summary, as_json, summary_of, table


@dataclass(frozen=True, slots=True)
class Choices:
    """How the report is made: margin of the non-inferiority test (0: none), seed of the permutation test, figures."""

    margin: float
    seed: int
    plots: bool


def publish(
    dataset: str,
    title: str,
    results: Sequence[Result],
    bound: Result,
    by_order: ByOrder,
    out: Path,
    settings: Mapping[str, object],
    choices: Choices,
    console: Console,
) -> Summary:
    """See `markdown` for what is what. Raises: ConfigError when something cannot be written."""
    drawn = draw(results, out) if choices.plots else []
    _write_report(out, markdown(title, results, bound, by_order, settings, choices.margin, choices.seed, drawn))
    summary = summary_of(dataset, title, results, choices.seed)
    write_text(out / SUMMARY_FILE, as_json(summary))
    print_table(console, title, {result.name: result.report for result in (*results, bound)})
    for other, c, p in comparisons(results, choices.seed):
        low, high = c.interval
        console.print(
            f"{other.name} against {results[0].name}: {c.difference:+.4f} ({low:+.4f} to {high:+.4f}), "
            f"p (Holm) {shown_p(p)}, {c.wins}/{c.ties}/{c.losses} wins/ties/losses"
        )
    for line in order_lines(by_order):
        console.print(line)
    console.print(f"report: {out / 'report.md'}")
    return summary


def publish_all(summaries: Sequence[Summary], out: Path, console: Console) -> None:
    """Of several datasets: systems × datasets, in a report above theirs. Raises: ConfigError, as `publish` does."""
    if len(summaries) < 2:
        return
    text = f"# {len(summaries)} datasets\n\n{table({summary.dataset: [summary] for summary in summaries})}\n"
    links = "\n".join(f"- [{one.dataset}]({folder_name(one.dataset)}/report.md)" for one in summaries)
    _write_report(out, f"{text}\n{links}\n")
    console.print(f"all datasets: {out / 'report.md'}")


def folder_of_dataset(dataset: str, datasets: Sequence[str], out: Path) -> Path:
    """`out` itself for a single dataset, else a folder in it. Raises: ConfigError when two have one name."""
    if len(set(datasets)) != len(datasets):
        raise ConfigError(f"datasets {', '.join(datasets)}: two have the same name, which is that of their folder")
    return out if len(datasets) == 1 else out / folder_name(dataset)


def folder_name(dataset: str) -> str:
    """ir_datasets has slashes in its names."""
    return dataset.replace("/", "-")


def _write_report(out: Path, text: str) -> None:
    write_text(out / "report.md", text)
    write_text(out / "report.html", html(text))
