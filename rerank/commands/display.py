"""Console output for people: tables and progress bars. Programs use --json instead."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf import text_format
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rerank.v1 import rerank_pb2 as pb

#: Longer ids continue on the next line.
_DOC_ID_WIDTH = 24
#: Seconds between two lines of progress, if no other reason for one comes first.
_LINE_EVERY_S = 30


def plain_console(stderr: bool = False) -> Console:
    """A console that prints text unchanged, because passages and queries can look like markup.

    It is 120 columns wide when the output is not a terminal.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream is not None and stream.isatty() else 120  # None: it is closed
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


class ProgressReport(Protocol):
    """Shows how far the stages of a long task are."""

    def report(self, stage: str, done: int, total: int | None) -> None:
        """Shows `done` of `total` passages for a stage; a `total` of None is unknown."""


@contextmanager
def indexing_progress(console: Console) -> Iterator[ProgressReport]:
    """Progress bars with throughput on a terminal; otherwise lines, see ProgressLines."""
    if not console.is_terminal:
        yield ProgressLines(console)
        return
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield IndexingProgress(progress)


class IndexingProgress:
    """One progress bar per stage, created when the stage first reports."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total, rate="")
        task = self._tasks[stage]
        self._progress.update(task, completed=done, total=total)
        if speed := self._progress.tasks[task].speed:
            self._progress.update(task, rate=f"{speed:,.0f} passages/s")


class ProgressLines:
    """A line of progress every 30 s, and at every 5 % but at most one per second, for output into a file or a pipe.

    Args:
        console: receives the lines.
        clock: returns seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._stage = ""
        self._start_s = self._line_s = clock()
        self._start_done = self._line_done = 0

    def report(self, stage: str, done: int, total: int | None) -> None:
        now_s = self._clock()
        if stage != self._stage:
            self._stage, self._start_s, self._start_done, self._line_done = stage, now_s, done, 0
            return
        waited_s = now_s - self._line_s
        advanced = total is not None and done - self._line_done >= 0.05 * total
        if waited_s < _LINE_EVERY_S and not (advanced and waited_s >= 1):
            return
        share = f" of {total:,} ({done / total:.0%})" if total else ""
        rate = (done - self._start_done) / (now_s - self._start_s)
        self._console.print(f"{stage}: {done:,}{share} passages, {rate:,.0f} passages/s")
        self._line_s, self._line_done = now_s, done


def results_table(title: str, response: pb.RerankResponse | pb.SearchResponse, verbose: bool = False) -> Table:
    """A table of results: rank, rank before reranking, score, doc_id and the start of the text; readable at 80 columns.

    `verbose` adds the scores of the first stage.
    """
    from rerank.v1 import rerank_pb2 as pb

    by_rank = response.score_kind == pb.SCORE_KIND_RANK
    table = Table(title=title, title_justify="left")
    meaning = {pb.SCORE_KIND_RANK: "by rank", pb.SCORE_KIND_INTERPOLATED: "interpolated"}
    for column in ("rank", "was", f"score:\n{meaning.get(response.score_kind, 'log-prob')}"):
        table.add_column(column, justify="right", no_wrap=True)
    if verbose:
        table.add_column("first\nstage", justify="right", no_wrap=True)
    longest = max((len(result.doc_id) for result in response.results), default=0)
    table.add_column("doc_id", overflow="fold", width=min(max(longest, len("doc_id")), _DOC_ID_WIDTH))
    table.add_column("passage")
    for rank, result in enumerate(response.results, start=1):
        score = f"{result.score:g}" if by_rank else f"{result.score:.4f}"
        first_stage = f"{result.first_stage_score:.4f}" if result.HasField("first_stage_score") else ""
        row = [str(rank), str(result.original_position + 1), score, *([first_stage] if verbose else [])]
        passage = Text(snippet(result.text), no_wrap=True, overflow="ellipsis")  # the one column that may shrink
        table.add_row(*row, result.doc_id, passage)
    return table


def execution_line(execution: pb.Execution) -> str:
    """One line on the execution: model, strategy, cost, latency, and what deviates from the full and exact order."""
    notes = [
        f"{execution.model}, {execution.strategy}",
        f"{execution.windows} windows",
        f"{execution.tokens:,} tokens",
        f"{execution.total_ms:.0f} ms",
    ]
    if execution.reason:
        notes.append(execution.reason)
    if execution.interpolation.reason:
        notes.append(f"no interpolation: {execution.interpolation.reason}")
    if execution.model_warning:
        notes.append(execution.model_warning)
    if execution.truncated_doc_ids:
        notes.append(f"{len(execution.truncated_doc_ids)} truncated")
    if execution.repaired_identifiers:
        notes.append(f"{execution.repaired_identifiers} repaired")
    return " · ".join(notes)


def feedback_line(report: pb.FeedbackReport) -> str:
    """The effect of relevance feedback, on one line."""
    effect = f"{report.new_passages} new passages" if report.updated else f"query vector unchanged: {report.reason}"
    return f"feedback: {effect}"


def models_table(response: pb.ListModelsResponse) -> Table:
    """A table of the models that requests may name; the default one has a star."""
    table = Table()
    for column in ("model", "ranker", "strategy", "largest window", "status"):
        table.add_column(column, overflow="fold")
    for model in response.models:
        name = f"{model.name} *" if model.is_default else model.name
        status = model.problem or (f"served; {model.warning}" if model.warning else "served")
        table.add_row(name, model.ranker, model.default_strategy, str(model.max_window_size), status)
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
    if field.message_type is not None:
        return text_format.MessageToString(value, as_one_line=True) or "-"
    if field.name.endswith("_doc_ids"):
        return ", ".join(value) or "none"
    if isinstance(value, float):
        return f"{value:.1f}" if field.name.endswith("_ms") else f"{value:.4f}"
    return str(value) or "-"
