"""Console output for people: tables and progress bars. Programs use --json instead."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from rerank.v1 import rerank_pb2 as pb


def plain_console(stderr: bool = False) -> Console:
    """A console that prints text unchanged, because passages and queries can look like markup.

    It is 120 columns wide when the output is not a terminal.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 120
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


@contextmanager
def indexing_progress(console: Console) -> Iterator[IndexingProgress]:
    """Progress bars with throughput; nothing is shown when the console is not a terminal."""
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield IndexingProgress(progress)


class IndexingProgress:
    """One progress bar per stage, created when the stage first reports."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, done: int, total: int | None) -> None:
        """Shows `done` of `total` passages for a stage; a `total` of None is unknown."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, rate="")
        task = self._tasks[stage]
        self._progress.update(task, completed=done, total=total)
        if speed := self._progress.tasks[task].speed:
            self._progress.update(task, rate=f"{speed:,.0f} passages/s")


def results_table(title: str, results: Sequence[pb.RankedCandidate]) -> Table:
    """A table of results: rank, rank before reranking, score, first-stage score, doc_id and start of the text."""
    table = Table(title=title, title_justify="left")
    for column in ("rank", "before", "score", "first stage"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("doc_id", overflow="fold")
    table.add_column("passage", no_wrap=True)
    for rank, result in enumerate(results, start=1):
        first_stage = f"{result.first_stage_score:.4f}" if result.HasField("first_stage_score") else ""
        before = str(result.original_position + 1)
        table.add_row(str(rank), before, f"{result.score:.4f}", first_stage, result.doc_id, snippet(result.text))
    return table


def fields_table(title: str, message: pb.Execution | pb.FeedbackReport) -> Table:
    """A table of the fields of a protobuf message and their values."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for field in message.DESCRIPTOR.fields:
        table.add_row(field.name, _formatted(message, field))
    return table


def snippet(text: str, chars: int = 60) -> str:
    """The start of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= chars else line[: chars - 1] + "…"


def _formatted(message: pb.Execution | pb.FeedbackReport, field: Any) -> str:
    value: Any = getattr(message, field.name)
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if field.name == "truncated_doc_ids":
        return ", ".join(value) or "none"
    if isinstance(value, float):
        return f"{value:.1f}" if field.name.endswith("_ms") else f"{value:.4f}"
    return str(value) or "-"
