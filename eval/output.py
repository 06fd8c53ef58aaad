"""What an evaluation leaves behind: run.trec, measures.json, and a table for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eval.measures import Report, Run
from rerank.errors import ConfigError


def write(out: Path, run: Run, report: Report, settings: Mapping[str, object]) -> None:
    """Writes both files, each under a temporary name first.

    Raises:
        ConfigError: the folder cannot be written.
    """
    measures = {"settings": dict(settings), "mean": report.mean, "per_query": report.per_query}
    try:
        out.mkdir(parents=True, exist_ok=True)
        _replace(out / "run.trec", trec_run(run, tag="rerank"))
        _replace(out / "measures.json", json.dumps(measures, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error}; choose another --out") from error


def trec_run(run: Run, tag: str) -> str:
    """Lines of query_id, Q0, doc_id, rank, score, tag; scores with all their digits, so that none become equal."""
    return "".join(
        f"{query_id} Q0 {doc.doc_id} {rank} {doc.score!r} {tag}\n"
        for query_id, docs in run.items()
        for rank, doc in enumerate(docs, start=1)
    )


def print_table(console: Console, title: str, rows: Mapping[str, Report]) -> None:
    """One row a system, one column a measure."""
    table = Table(title=title, title_justify="left")
    table.add_column("system")
    for name in next(iter(rows.values())).mean:
        table.add_column(name, justify="right")
    for system, report in rows.items():
        table.add_row(system, *(f"{value:.4f}" for value in report.mean.values()))
    console.print(table)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.writing")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
