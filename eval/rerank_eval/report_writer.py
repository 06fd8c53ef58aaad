"""Writes the report of an evaluation (report.md, report.html, figures, summary.json) and prints its main figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rerank.errors import ConfigError
from rerank_eval.measures import MetricValues
from rerank_eval.plots import draw
from rerank_eval.report import Report, format_p, markdown, order_lines
from rerank_eval.report_html import html_page
from rerank_eval.run_files import write_text
from rerank_eval.table import SUMMARY_FILE, Summary, summarize, summary_json, table


def write_report(report: Report, out: Path, plots: bool, console: Console) -> Summary:
    """Writes the report of one dataset into the folder `out` and prints its main figures.

    Args:
        plots: draw the figures of the report.

    Raises:
        ConfigError: a file cannot be written, or the figures need a package that is not installed.
    """
    names = draw(report.results, out) if plots else []
    _write(out, markdown(report, names), report.title, {name: (out / name).read_bytes() for name in names})
    summary = summarize(report.dataset, report.title, report.results, report.seed, report.notes)
    write_text(out / SUMMARY_FILE, summary_json(summary))
    _print(report, console)
    console.print(f"report: {out / 'report.html'} (in Markdown: report.md)")
    return summary


def write_overview(summaries: Sequence[Summary], out: Path, console: Console) -> None:
    """Writes a report with the table of all systems and datasets, if there are several datasets.

    Raises:
        ConfigError: a file cannot be written.
    """
    if len(summaries) < 2:
        return
    text = f"# {len(summaries)} datasets\n\n{table({summary.dataset: [summary] for summary in summaries})}\n"
    links = "\n".join(f"- [{s.dataset}]({_folder_name(s.dataset)}/report.html)" for s in summaries)
    _write(out, f"{text}\n{links}\n", f"{len(summaries)} datasets", {})
    console.print(f"report of all datasets: {out / 'report.html'} (in Markdown: report.md)")


def dataset_folder(dataset: str, datasets: Sequence[str], out: Path) -> Path:
    """The folder of a dataset's results: `out` itself if there is only one dataset, else a folder inside it.

    Raises:
        ConfigError: two datasets have the same name.
    """
    if len(set(datasets)) != len(datasets):
        raise ConfigError(f"datasets {', '.join(datasets)}: two have the same name, and so the same result folder")
    return out if len(datasets) == 1 else out / _folder_name(dataset)


def print_table(console: Console, title: str, rows: Mapping[str, MetricValues]) -> None:
    """Prints one row per system with one column per measure."""
    table = Table(title=title, title_justify="left")
    table.add_column("system")
    for name in next(iter(rows.values())).mean:
        table.add_column(name, justify="right")
    for system, metrics in rows.items():
        table.add_row(system, *(f"{value:.4f}" for value in metrics.mean.values()))
    console.print(table)


def _print(report: Report, console: Console) -> None:
    print_table(console, report.title, {result.name: result.metrics for result in report.rows})
    for note in report.notes:
        console.print(note)
    for reference, compared in report.compared:
        for other, c, p in compared:
            low, high = c.interval
            console.print(
                f"{other.name} compared with {reference.name}: {c.difference:+.4f} ({low:+.4f} to {high:+.4f}), "
                f"p (Holm) {format_p(p)}, {c.wins}/{c.ties}/{c.losses} wins/ties/losses"
            )
    for line in order_lines(report.by_order):
        console.print(line)


def _folder_name(dataset: str) -> str:
    return dataset.replace("/", "-")  # names of ir_datasets contain slashes


def _write(out: Path, text: str, title: str, images: Mapping[str, bytes]) -> None:
    write_text(out / "report.md", text)
    write_text(out / "report.html", html_page(text, title, images))
