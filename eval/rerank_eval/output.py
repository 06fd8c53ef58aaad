"""What an evaluation leaves behind for every system: run.trec, measures.json; and a table for people."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rerank.errors import ConfigError
from rerank_eval.measures import Report, Run


def write(out: Path, run: Run, report: Report, settings: Mapping[str, object]) -> None:
    """Writes both files, each under a temporary name first.

    Raises:
        ConfigError: the folder cannot be written.
    """
    measures = {
        "settings": dict(settings),
        "mean": report.mean,
        "per_query": report.per_query,
        "missing": list(report.missing),
    }
    write_text(out / "run.trec", trec_run(run, tag="rerank"))
    write_text(out / "measures.json", json.dumps(measures, indent=2) + "\n")


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    packages = ("rerank", "torch", "transformers", "sentence-transformers", "faiss-cpu", "pyserini", "ir-measures")
    return {"python": platform.python_version()} | {name: found for name in packages if (found := _version(name))}


def _version(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:
        return ""


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


def write_text(path: Path, text: str) -> None:
    """Replaces the file, whole or not at all. Raises: ConfigError when it cannot be written."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; choose another --out") from error
